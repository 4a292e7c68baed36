#include "tests/gpu/images.h"

// The assembler includes the files, so no generated arrays are needed.
#define GPUPOOL_EMBED(name, file)                                                                            \
    __asm__(".pushsection .rodata\n.balign 64\n.global gpupool_image_" #name "\ngpupool_image_" #name        \
            ":\n.incbin \"" GPUPOOL_IMAGES "/" file "\"\n.global gpupool_image_end_" #name                   \
            "\ngpupool_image_end_" #name ":\n.byte 0\n.popsection\n");                                       \
    extern "C" const char gpupool_image_##name[];                                                            \
    extern "C" const char gpupool_image_end_##name[];                                                        \
    gpupool::programs::Image gpupool::programs::name() {                                                     \
        return {gpupool_image_##name, static_cast<size_t>(gpupool_image_end_##name - gpupool_image_##name)}; \
    }

GPUPOOL_EMBED(kernels_ptx, "kernels.ptx")
GPUPOOL_EMBED(kernels_cubin, "kernels.cubin")
GPUPOOL_EMBED(kernels_fatbin, "kernels.fatbin")
GPUPOOL_EMBED(faults_ptx, "faults.ptx")
GPUPOOL_EMBED(link_caller_ptx, "link_caller.ptx")
GPUPOOL_EMBED(link_callee_ptx, "link_callee.ptx")
