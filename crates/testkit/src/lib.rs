//! A Manager and workers in one process on free ports, for tests
