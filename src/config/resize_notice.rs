//! The notices of a resize that a handler allows, and the ones that a pod selects.

use model::Signal;

use super::resolve::{InvalidSetting, invalid};

/// Signals that programs use for a reload or ignore by default.
const SIGNALS: [&str; 5] = ["SIGHUP", "SIGUSR1", "SIGUSR2", "SIGWINCH", "SIGURG"];
/// Maximum bytes of the hook with its arguments.
const HOOK_MAX: usize = 4096;

/// The notices that a handler allows; none by default.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AllowedNotices {
    file: bool,
    signals: Vec<Signal>,
    /// The command with its arguments. Empty: no hook.
    hook: Vec<String>,
}

/// The notices that a pod selects for a container.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SelectedNotices {
    /// A file in the container.
    pub file: bool,
    /// Sent to the first process.
    pub signal: Option<Signal>,
    /// The command to run in the container.
    pub hook: Option<Vec<String>>,
}

/// A pod selects a notice that its handler does not allow.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NoticeNotAllowed {
    #[error("selects a resize notice that is not allowed: {0} (resize_notices in crisp.toml)")]
    Word(String),
    #[error("selects two signals: at most one is allowed")]
    TwoSignals,
}

impl AllowedNotices {
    pub(super) fn resolve(section: &str, words: &[String], hook: Vec<String>) -> Result<Self, InvalidSetting> {
        let key = format!("{section}.resize_notices");
        let hook_key = format!("{section}.resize_hook");
        let length: usize = hook.iter().map(String::len).sum();
        let has_nul = hook.iter().any(|argument| argument.contains('\0'));
        if hook.first().is_some_and(String::is_empty) || has_nul || length > HOOK_MAX {
            let expected = "expected a program and its arguments, at most 4096 bytes without NUL";
            return Err(invalid(&hook_key, format_args!("invalid command: {expected}")));
        }
        let mut allowed = Self::default();
        for word in words {
            match word.as_str() {
                "file" => allowed.file = true,
                "hook" if hook.is_empty() => {
                    return Err(invalid(&key, format_args!("\"hook\" requires a command in {hook_key}")));
                }
                "hook" => allowed.hook.clone_from(&hook),
                name => match Signal::parse(name) {
                    Ok(signal) if SIGNALS.contains(&name) => allowed.signals.push(signal),
                    Ok(_) | Err(_) => {
                        let known = SIGNALS.join("\", \"");
                        let text = format_args!("must be \"file\", \"hook\", \"{known}\", got {name:?}");
                        return Err(invalid(&key, text));
                    }
                },
            }
        }
        Ok(allowed)
    }

    /// Returns the notices that `text` selects: words separated by commas.
    pub fn select(&self, text: &str) -> Result<SelectedNotices, NoticeNotAllowed> {
        let mut selected = SelectedNotices::default();
        for word in text.split(',').map(str::trim) {
            let signal = self.signals.iter().find(|signal| signal.to_string() == word);
            match (word, signal) {
                ("file", _) if self.file => selected.file = true,
                ("hook", _) if !self.hook.is_empty() => selected.hook = Some(self.hook.clone()),
                (_, Some(signal)) => {
                    if selected.signal.replace(*signal).is_some() {
                        return Err(NoticeNotAllowed::TwoSignals);
                    }
                }
                _ => return Err(NoticeNotAllowed::Word(self.allowed())),
            }
        }
        Ok(selected)
    }

    fn allowed(&self) -> String {
        let words = self.file.then(|| "file".to_owned()).into_iter();
        let hook = (!self.hook.is_empty()).then(|| "hook".to_owned());
        let words: Vec<String> = words.chain(hook).chain(self.signals.iter().map(Signal::to_string)).collect();
        if words.is_empty() {
            "the pod's runtime handler allows none".to_owned()
        } else {
            format!("the pod's runtime handler allows {}", words.join(", "))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resolve(words: &[&str], hook: &[&str]) -> Result<AllowedNotices, String> {
        let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
        let hook = hook.iter().map(|word| (*word).to_owned()).collect();
        AllowedNotices::resolve("container", &words, hook).map_err(|invalid| invalid.to_string())
    }

    #[test]
    fn a_pod_selects_only_what_is_allowed() {
        let some = resolve(&["file", "SIGHUP", "SIGUSR1"], &["/hook"]).unwrap();
        let selected = some.select(" file , SIGHUP").unwrap();
        assert_eq!(selected, SelectedNotices { file: true, signal: Some(Signal::parse("HUP").unwrap()), hook: None });
        assert_eq!(some.select("SIGHUP,SIGUSR1"), Err(NoticeNotAllowed::TwoSignals));
        for bad in ["", "hook", "SIGKILL", "HUP", "1", "sighup", "file,", "file,SIGUSR2", "FILE"] {
            let error = some.select(bad).unwrap_err().to_string();
            assert!(error.contains("handler allows file, SIGHUP, SIGUSR1 (resize_notices"), "{bad}: {error}");
        }
        let none = AllowedNotices::default();
        let error = none.select("file").unwrap_err().to_string();
        assert!(error.contains("not allowed: the pod's runtime handler allows none"), "{error}");
        let all = resolve(&["hook"], &["/hook", "a"]).unwrap();
        assert_eq!(all.select("hook").unwrap().hook.unwrap(), ["/hook", "a"]);
    }

    #[test]
    fn signals_that_end_or_stop_a_process_and_hooks_without_a_command_are_refused() {
        for bad in ["SIGKILL", "SIGSTOP", "SIGTERM", "SIGTSTP", "HUP", "9", "", "files"] {
            let error = resolve(&[bad], &[]).unwrap_err();
            assert!(error.contains("container.resize_notices") && error.contains(&format!("{bad:?}")), "{error}");
        }
        let error = resolve(&["hook"], &[]).unwrap_err();
        assert!(error.contains("requires a command in container.resize_hook"), "{error}");
        for bad in [&[""][..], &["/a", "b\0"], &["/a", &"x".repeat(5000)]] {
            assert!(resolve(&[], bad).unwrap_err().contains("container.resize_hook: invalid command"), "{bad:?}");
        }
    }
}
