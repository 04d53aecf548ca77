//! Measured values by name, with their unit and the number of failed steps.

use std::fmt::Display;
use std::time::{Duration, Instant};

use tonic::{Response, Status};

/// Unit of a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
pub(crate) enum Unit {
    #[serde(rename = "ms")]
    Ms,
    #[serde(rename = "MB")]
    MB,
    #[serde(rename = "MB/s")]
    MBPerSecond,
    #[serde(rename = "1/s")]
    PerSecond,
}

impl Unit {
    pub(crate) fn label(self) -> &'static str {
        match self {
            Self::Ms => "ms",
            Self::MB => "MB",
            Self::MBPerSecond => "MB/s",
            Self::PerSecond => "1/s",
        }
    }

    pub(crate) fn more_is_better(self) -> bool {
        match self {
            Self::Ms | Self::MB => false,
            Self::MBPerSecond | Self::PerSecond => true,
        }
    }
}

/// The values of one measured operation.
#[derive(Debug, Clone)]
pub(crate) struct Figure {
    pub(crate) name: String,
    pub(crate) unit: Unit,
    pub(crate) values: Vec<f64>,
    /// Number of failures; a failed step has no value.
    pub(crate) errors: u32,
    pub(crate) first_error: Option<String>,
}

/// Figures in the order in which their names were first used.
#[derive(Debug, Clone, Default)]
pub(crate) struct Figures(Vec<Figure>);

impl Figures {
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Figure> {
        self.0.iter()
    }

    pub(crate) fn get(&self, name: &str) -> Option<&Figure> {
        self.0.iter().find(|figure| figure.name == name)
    }

    pub(crate) fn errors(&self) -> u32 {
        self.0.iter().map(|figure| figure.errors).sum()
    }

    fn entry(&mut self, name: &str, unit: Unit) -> &mut Figure {
        let at = self.0.iter().position(|figure| figure.name == name).unwrap_or_else(|| {
            let (values, errors, first_error) = (Vec::new(), 0, None);
            self.0.push(Figure { name: name.to_owned(), unit, values, errors, first_error });
            self.0.len() - 1
        });
        &mut self.0[at]
    }

    pub(crate) fn add(&mut self, name: &str, unit: Unit, value: f64) {
        self.entry(name, unit).values.push(value);
    }

    pub(crate) fn add_time(&mut self, name: &str, time: Duration) {
        self.add(name, Unit::Ms, time.as_secs_f64() * 1000.0);
    }

    /// Adds a value, or counts an error.
    pub(crate) fn note(&mut self, name: &str, unit: Unit, measured: Result<f64, impl Display>) {
        match measured {
            Ok(value) => self.add(name, unit, value),
            Err(error) => self.fail(name, unit, &error),
        }
    }

    pub(crate) fn fail(&mut self, name: &str, unit: Unit, error: &impl Display) {
        let figure = self.entry(name, unit);
        figure.errors += 1;
        figure.first_error.get_or_insert_with(|| error.to_string());
    }

    /// Measures a call; counts a failed call and returns None.
    pub(crate) async fn time<T>(
        &mut self,
        name: &str,
        call: impl Future<Output = Result<Response<T>, Status>>,
    ) -> Option<T> {
        let begin = Instant::now();
        match call.await {
            Ok(answer) => {
                self.add_time(name, begin.elapsed());
                Some(answer.into_inner())
            }
            Err(status) => {
                self.fail(name, Unit::Ms, &format_args!("{:?}: {}", status.code(), status.message()));
                None
            }
        }
    }

    /// Adds only the failures of `other`.
    pub(crate) fn add_failures(&mut self, other: &Self) {
        for figure in other.0.iter().filter(|figure| figure.errors > 0) {
            let mine = self.entry(&figure.name, figure.unit);
            mine.errors += figure.errors;
            mine.first_error = mine.first_error.take().or_else(|| figure.first_error.clone());
        }
    }

    /// Adds all values and failures of `other`.
    pub(crate) fn merge(&mut self, other: Self) {
        for figure in other.0 {
            let Figure { name, unit, values, errors, first_error } = figure;
            let mine = self.entry(&name, unit);
            mine.values.extend(values);
            mine.errors += errors;
            mine.first_error = mine.first_error.take().or(first_error);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_failed_step_is_counted_and_has_no_value() {
        let mut figures = Figures::default();
        assert_eq!(figures.time("walk", async { Ok(Response::new(3)) }).await, Some(3));
        let fall = async { Err::<Response<()>, _>(Status::not_found("no feet")) };
        assert_eq!(figures.time("walk", fall).await, None);
        let again = async { Err::<Response<()>, _>(Status::internal("again")) };
        figures.time("walk", again).await;
        let walk = figures.get("walk").unwrap();
        assert_eq!((walk.values.len(), walk.errors, walk.first_error.as_deref()), (1, 2, Some("NotFound: no feet")));
        assert_eq!(figures.errors(), 2);
    }

    #[test]
    fn figures_of_several_tasks_are_merged_by_name() {
        let (mut a, mut b) = (Figures::default(), Figures::default());
        a.add("x", Unit::MB, 1.0);
        b.add("y", Unit::PerSecond, 5.0);
        b.add("x", Unit::MB, 2.0);
        b.fail("x", Unit::MB, &"gone");
        a.merge(b);
        let names: Vec<&str> = a.iter().map(|figure| figure.name.as_str()).collect();
        assert_eq!(names, ["x", "y"]);
        assert_eq!(a.get("x").unwrap().values, [1.0, 2.0]);
        assert_eq!(a.get("x").unwrap().errors, 1);
    }
}
