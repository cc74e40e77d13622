//! The resources that a process uses. A figure is NaN if the system does not report it.

/// Returns the CPU seconds that the process has used.
pub fn cpu(pid: u32) -> f64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let after_name = stat.rsplit(')').next().unwrap_or_default();
    let ticks: Vec<f64> = after_name
        .split_whitespace()
        .skip(11)
        .take(2)
        .filter_map(|n| n.parse().ok())
        .collect();
    if ticks.len() == 2 {
        ticks.iter().sum::<f64>() / 100.0
    } else {
        f64::NAN
    }
}

/// Returns the memory of the process in bytes.
pub fn memory(pid: u32) -> f64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|line| {
        line.trim()
            .trim_end_matches("kB")
            .trim()
            .parse::<f64>()
            .ok()
    })
    .map_or(f64::NAN, |kb| kb * 1024.0)
}
