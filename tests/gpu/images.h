// The kernels of kernels/*.cu as nvcc compiled them, embedded in each program. PTX ends with a zero byte, as the driver
// requires.
//
// Ownership: static data. Threads: any. Errors: none.
#pragma once

#include <cstddef>

namespace gpupool::programs {

struct Image {
    const void* data;
    size_t bytes;  // without PTX's terminating zero
};

Image kernels_ptx();
Image kernels_cubin();    // sm_90 machine code
Image kernels_fatbin();   // sm_75 and sm_90 machine code, and PTX
Image faults_ptx();       // kernels that fail on purpose
Image link_caller_ptx();  // needs a function of link_callee
Image link_callee_ptx();

}  // namespace gpupool::programs
