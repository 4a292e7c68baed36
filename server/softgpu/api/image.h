// From what a load call gets to PTX text.
//
// Ownership: the text is a copy. Threads: any. Errors: CUresult, and a message for the JIT log.
#pragma once

#include <string>

#include "server/softgpu/api/objects.h"

namespace gpupool::softgpu {

// What a load call says about options: where its error log goes.
struct JitOptions {
    char* error_log = nullptr;
    std::size_t error_log_bytes = 0;
    void** error_log_size_slot = nullptr;
};
JitOptions read_jit_options(unsigned count, CUjit_option* options, void** values);
void write_jit_log(const JitOptions& options, const std::string& text);

// Follows the pointer as the driver does: the caller's memory is trusted to hold an image.
CUresult ptx_of_image(const void* image, std::string& text, std::string& message);

// Text to code, with the failure in `message`.
CUresult compile_text(const std::string& text, std::shared_ptr<CompiledModule>& code, std::string& message);

}  // namespace gpupool::softgpu
