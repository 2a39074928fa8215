// Called at every jump of code that is compiled with -fsanitize-coverage=trace-pc; see tests/fuzz/driver.cpp.
extern "C" void __sanitizer_cov_trace_pc() {}
