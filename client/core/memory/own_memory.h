// Access to memory of this process that may be unmapped or inaccessible, because the application changed it without
// telling CUDA.
//
// Touching such memory would raise a signal in one of gpupool's threads. These functions let the kernel access it and
// return an error instead.
//
// Ownership: none.
// Threads: any.
// Errors: the return value. If the kernel forbids a process to read its own memory this way (a strict seccomp filter),
// the memory is assumed to be present.
#pragma once

#include <cstddef>
#include <span>

namespace gpupool::client {

// Copies from `source`. False if not all of it can be read. If `target` and `source` are aligned alike, a word that
// others write meanwhile is copied whole: the kernel copies in words.
bool read_own_memory(std::span<std::byte> target, const std::byte* source);

// Can `bytes` at `at` be written now? Changes nothing. Call it just before writing. Writing through the kernel would
// need no such check, but it splits words, which a program that polls them would see.
bool own_memory_is_writable(std::byte* at, std::size_t bytes);

}  // namespace gpupool::client
