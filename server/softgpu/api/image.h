// Extracts PTX text from the image that a load call receives.
//
// Ownership: the text is a copy. Threads: any. Errors: CUresult, and a message for the JIT log.
#pragma once

#include <string>

#include "server/softgpu/api/objects.h"

namespace gpupool::softgpu {

// The JIT options that are honoured: the error log, and the limit of registers, which only shows in their number.
struct JitOptions {
    char* error_log = nullptr;
    std::size_t error_log_bytes = 0;
    void** error_log_size_slot = nullptr;
    unsigned max_registers = 0;  // 0: no limit
    bool valid = true;           // false: an option has a value that the driver refuses
};
JitOptions read_jit_options(unsigned count, CUjit_option* options, void** values);
void write_jit_log(const JitOptions& options, const std::string& text);

// Reads the image at the pointer. Like the driver, it trusts the pointer.
CUresult ptx_of_image(const void* image, std::string& text, std::string& message);

// Compiles text to code. On failure, `message` says why.
CUresult compile_text(const std::string& text, unsigned max_registers, std::shared_ptr<CompiledModule>& code,
                      std::string& message);

// Both of these, with the message in the JIT log.
CUresult compile_image(const void* image, const JitOptions& options, std::string& text,
                       std::shared_ptr<CompiledModule>& code);

// Reads a whole file for ptx_of_image(), with zeros behind it.
CUresult read_image_file(const char* path, std::string& image);

}  // namespace gpupool::softgpu
