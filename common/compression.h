// Pieces of code images for the wire, by zstd at its fastest.
//
// Ownership: values. Threads: any. Errors: a damaged piece is said to be one; nothing is ever written outside of the
// room that was given.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <vector>

namespace gpupool::fatbin {

// Nothing where it would not become smaller by an eighth.
std::optional<std::vector<std::byte>> compress(std::span<const std::byte> piece);

// False unless `packed` is a piece that fills `room` exactly.
bool decompress(std::span<const std::byte> packed, std::span<std::byte> room);

}  // namespace gpupool::fatbin
