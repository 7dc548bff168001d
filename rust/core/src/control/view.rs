//! The table that a policy reads: a copy of the measured state of the fleet.

use std::sync::Arc;

/// Values of one column.
#[derive(Debug, Clone, PartialEq)]
pub enum Values {
    /// Real numbers.
    F64(Vec<f64>),
    /// Whole numbers.
    I64(Vec<i64>),
    /// Truth values.
    Bool(Vec<bool>),
}

/// Shape of one column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    /// One value per replica.
    Replicas,
    /// One value per workload.
    Workloads,
    /// One value per replica and workload, row-major.
    Matrix,
}

/// One named column.
#[derive(Debug, Clone, PartialEq)]
pub struct Column {
    /// Field name, unit included.
    pub name: &'static str,
    /// Shape.
    pub shape: Shape,
    /// Values.
    pub values: Values,
}

/// The measured state of the fleet at one moment. Row order is `replicas` and `workloads`.
#[derive(Debug, Clone, PartialEq)]
pub struct FleetView {
    /// Number of this view; limits computed from it carry it back.
    pub step: i64,
    /// Time of the view on the caller's clock, s.
    pub now_s: f64,
    /// Seconds since limits were last applied.
    pub elapsed_s: f64,
    /// Replica names.
    pub replicas: Vec<Arc<str>>,
    /// Workload names.
    pub workloads: Vec<Arc<str>>,
    /// The columns, in documented order.
    pub columns: Vec<Column>,
}

impl FleetView {
    /// The column of this name.
    #[must_use]
    pub fn column(&self, name: &str) -> Option<&Column> {
        self.columns.iter().find(|column| column.name == name)
    }
}
