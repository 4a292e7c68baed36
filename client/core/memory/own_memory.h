// Memory of this process that may have gone: the application unmapped it, or took its access away, without telling
// CUDA.
//
// Touching it would be a signal in one of our threads; asking the kernel to do it is an error that we can take.
//
// Threads: any. Errors: said by what is returned. Where the kernel does not permit a process to ask for its own memory
//   (a strict seccomp filter), it is taken for present.
#pragma once

#include <cstddef>
#include <span>

namespace gpupool::client {

// Copies what is at `source`; false: not all of it can be read. A word that others write meanwhile is copied whole
// where `target` and `source` are aligned alike: the kernel copies in words.
bool read_own_memory(std::span<std::byte> target, const std::byte* source);

// Whether `bytes` at `at` can be written now. Nothing is changed. It is for a write that follows at once: writing
// through the kernel would need no question, but it writes words in pieces, which a program that polls them would see.
bool own_memory_is_writable(std::byte* at, std::size_t bytes);

}  // namespace gpupool::client
