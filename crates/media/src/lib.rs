//! The test signal and the meter: testcard and probe
