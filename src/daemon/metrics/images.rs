//! Metrics of pulls and the image store.

use std::collections::BTreeMap;

use image::{ActivePull, PullTotals, Usage};

use super::text::{Exposition, Kind};

pub(super) fn write(text: &mut Exposition, traffic: &PullTotals, usage: &Usage, images: usize) {
    let PullTotals { succeeded, failed, bytes, layers, retries, pulling } = traffic;
    let mut pulls = text.family("crisp_image_pulls_total", Kind::Counter, "Completed image pulls by outcome.");
    pulls.sample(&[("outcome", "succeeded")], succeeded);
    pulls.sample(&[("outcome", "failed")], failed.values().sum::<u64>());
    let mut causes = text.family("crisp_image_pull_failures_total", Kind::Counter, "Failed image pulls by cause.");
    failed.iter().for_each(|(cause, count)| causes.sample(&[("cause", cause)], count));
    for (name, help, value) in [
        ("crisp_image_pull_bytes_total", "Bytes of images received over the network.", bytes),
        ("crisp_image_pull_layers_total", "Image layers that crisp pulled and unpacked.", layers),
        ("crisp_image_pull_retries_total", "Requests to registries that crisp sent again after a failure.", retries),
    ] {
        text.family(name, Kind::Counter, help).sample(&[], value);
    }
    text.family("crisp_image_pulls_in_progress", Kind::Gauge, "Image pulls that are in progress.")
        .sample(&[], pulling.len());
    progress(text, pulling);

    let Usage { path: _, bytes, inodes } = usage;
    text.family("crisp_image_store_bytes", Kind::Gauge, "Disk space used by crisp's image store, in bytes.")
        .sample(&[], bytes);
    text.family("crisp_image_store_inodes", Kind::Gauge, "Files and directories in crisp's image store.")
        .sample(&[], inodes);
    text.family("crisp_images", Kind::Gauge, "Images in crisp's image store.").sample(&[], images);
}

/// Concurrent pulls of one image are reported as one sample, because the labels must be unique.
fn progress(text: &mut Exposition, pulling: &[ActivePull]) {
    let mut by_image: BTreeMap<&str, (u64, u64)> = BTreeMap::new();
    for ActivePull { image, since: _, bytes, total, layers: _, layers_total: _ } in pulling {
        let known = by_image.entry(image).or_default();
        *known = (known.0.max(*bytes), known.1.max(*total));
    }
    let came = "Bytes of layers that an image pull in progress has received so far.";
    let mut family = text.family("crisp_image_pull_progress_bytes", Kind::Gauge, came);
    by_image.iter().for_each(|(image, (bytes, _))| family.sample(&[("image", image)], bytes));
    let whole = "Bytes of layers that an image pull in progress must receive in total; 0 while unknown.";
    let mut family = text.family("crisp_image_pull_progress_total_bytes", Kind::Gauge, whole);
    by_image.iter().for_each(|(image, (_, total))| family.sample(&[("image", image)], total));
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::time::Duration;

    use super::*;

    fn pulling(image: &str, bytes: u64, total: u64) -> ActivePull {
        let since = Duration::from_secs(1);
        ActivePull { image: image.to_owned(), since, bytes, total, layers: 0, layers_total: 1 }
    }

    #[test]
    fn every_value_has_one_sample() {
        let pulling =
            vec![pulling("a.example/x:1", 1, 10), pulling("a.example/y:1", 2, 0), pulling("a.example/x:1", 3, 10)];
        let traffic = PullTotals {
            succeeded: 11,
            failed: [("network", 5), ("tls", 7)].into(),
            bytes: 13,
            layers: 14,
            retries: 15,
            pulling,
        };
        let usage = Usage { path: "/x".into(), bytes: 16, inodes: 17 };
        let mut text = Exposition::default();
        write(&mut text, &traffic, &usage, 18);
        let text = String::from(text);
        let samples: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).collect();
        assert_eq!(
            samples,
            [
                "crisp_image_pulls_total{outcome=\"succeeded\"} 11",
                "crisp_image_pulls_total{outcome=\"failed\"} 12",
                "crisp_image_pull_failures_total{cause=\"network\"} 5",
                "crisp_image_pull_failures_total{cause=\"tls\"} 7",
                "crisp_image_pull_bytes_total 13",
                "crisp_image_pull_layers_total 14",
                "crisp_image_pull_retries_total 15",
                "crisp_image_pulls_in_progress 3",
                "crisp_image_pull_progress_bytes{image=\"a.example/x:1\"} 3",
                "crisp_image_pull_progress_bytes{image=\"a.example/y:1\"} 2",
                "crisp_image_pull_progress_total_bytes{image=\"a.example/x:1\"} 10",
                "crisp_image_pull_progress_total_bytes{image=\"a.example/y:1\"} 0",
                "crisp_image_store_bytes 16",
                "crisp_image_store_inodes 17",
                "crisp_images 18",
            ]
        );
        let helps: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix("# HELP ")).collect();
        let names: BTreeSet<&str> = helps.iter().filter_map(|help| help.split(' ').next()).collect();
        assert_eq!(names.len(), helps.len(), "a family is begun twice");
    }
}
