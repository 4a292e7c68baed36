// Files made by nvcc at build time, and hand-made containers.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/fatbin/image.h"

namespace gpupool::fatbin::test {

// The whole file; a text gets a terminating NUL, as in a program's memory.
std::vector<std::byte> fixture(const std::string& name);

struct MadeEntry {
    Kind kind = Kind::ptx;
    std::uint32_t arch = 0;
    std::uint64_t flags = 0;
    std::string payload;
    std::uint32_t compressed_bytes = 0;
    std::uint64_t unpacked_bytes = 0;
};

// A container with these entries, in nvcc's layout.
std::vector<std::byte> make_container(const std::vector<MadeEntry>& entries);

}  // namespace gpupool::fatbin::test
