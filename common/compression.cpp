#include "common/fatbin/compression.h"

#include <zstd.h>

namespace gpupool::fatbin {

std::optional<std::vector<std::byte>> compress(std::span<const std::byte> piece) {
    std::vector<std::byte> packed(piece.size() - piece.size() / 8);
    const std::size_t bytes = ZSTD_compress(packed.data(), packed.size(), piece.data(), piece.size(), 1);
    if (ZSTD_isError(bytes)) {
        return std::nullopt;  // as a rule because it does not fit
    }
    packed.resize(bytes);
    return packed;
}

bool decompress(std::span<const std::byte> packed, std::span<std::byte> room) {
    return ZSTD_decompress(room.data(), room.size(), packed.data(), packed.size()) == room.size();
}

}  // namespace gpupool::fatbin
