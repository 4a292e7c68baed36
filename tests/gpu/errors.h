// The sections of errors.cpp: each makes mistakes and reports the driver's answers.
//
// Threads: one. Errors: report() counts an answer that is not among the expected ones; if none is expected, any failure
// is accepted.
#pragma once

#include <cuda.h>

#include <initializer_list>

namespace gpupool::programs {

void report(const char* name, CUresult actual, std::initializer_list<CUresult> expected);

// With device 0's primary context current.
void launch_mistakes();
void memory_mistakes();
void reservation_mistakes();
void module_mistakes();
void device_mistakes();
void event_mistakes();
void whose_mistakes();
void registration_mistakes();

// Each in its own process.
void mistakes_before_init();
void mistakes_without_context();
void illegal_address();
void misaligned_address();
void trap();
void failed_assertion();
void null_handles();
void replaced_context();
void destroyed_context();

}  // namespace gpupool::programs
