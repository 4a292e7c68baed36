// Memory for malloc in kernels, and strings that kernels point to.
//
// Ownership: process-wide. Threads: any. Errors: null, false or an empty string; an invalid pointer is never
//   dereferenced.
#pragma once

#include <cstdint>
#include <string>

namespace gpupool::softgpu {

// CU_LIMIT_MALLOC_HEAP_SIZE bounds the total.
std::uint64_t device_malloc(std::uint64_t size_bytes);
bool device_free(std::uint64_t address);
void set_device_heap_limit(std::uint64_t limit_bytes);

// The NUL-terminated text at a kernel's address. Cut at the end of its allocation, or after 64 KiB.
std::string device_string(std::uint64_t address);

// Formats a device printf. Arguments are packed, naturally aligned, 4 or 8 bytes each.
std::string format_device_printf(const std::string& format, const std::uint8_t* arguments, std::size_t arguments_bytes,
                                 std::uint32_t& arguments_read);

}  // namespace gpupool::softgpu
