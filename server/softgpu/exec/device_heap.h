// What kernels get from malloc, and strings that kernels point to.
//
// Ownership: process-wide. Threads: any. Errors: null, false or an empty string; a bad pointer is never followed.
#pragma once

#include <cstdint>
#include <string>

namespace gpupool::softgpu {

// The total is bounded as by CU_LIMIT_MALLOC_HEAP_SIZE.
std::uint64_t device_malloc(std::uint64_t size_bytes);
bool device_free(std::uint64_t address);
void set_device_heap_limit(std::uint64_t limit_bytes);
std::uint64_t device_heap_limit();

// The NUL-terminated text at a kernel's address; ends where its allocation ends, or after 64 KiB.
std::string device_string(std::uint64_t address);

// The text of a device printf from its format and its packed arguments (naturally aligned, 4 or 8 bytes each).
std::string format_device_printf(const std::string& format, const std::uint8_t* arguments, std::size_t arguments_bytes,
                                 std::uint32_t& arguments_read);

}  // namespace gpupool::softgpu
