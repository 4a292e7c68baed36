#include "common/compression.h"

#include <zstd.h>

namespace gpupool {
namespace {

constexpr int kFastest = 1;

}  // namespace

void Compressor::Free::operator()(ZSTD_CCtx_s* context) const noexcept {
    ZSTD_freeCCtx(context);
}

std::span<const std::byte> Compressor::compress(std::span<const std::byte> piece) {
    if (!context_) {
        context_.reset(ZSTD_createCCtx());
    }
    if (!context_) {
        return {};
    }
    packed_.resize(piece.size() - piece.size() / 8);
    const std::size_t bytes =
        ZSTD_compressCCtx(context_.get(), packed_.data(), packed_.size(), piece.data(), piece.size(), kFastest);
    if (ZSTD_isError(bytes) != 0) {
        return {};  // usually because the result does not fit into `packed_`
    }
    return std::span(packed_).first(bytes);
}

void Decompressor::Free::operator()(ZSTD_DCtx_s* context) const noexcept {
    ZSTD_freeDCtx(context);
}

bool Decompressor::decompress(std::span<const std::byte> packed, std::span<std::byte> room) {
    if (!context_) {
        context_.reset(ZSTD_createDCtx());
    }
    return context_ &&
           ZSTD_decompressDCtx(context_.get(), room.data(), room.size(), packed.data(), packed.size()) == room.size();
}

std::optional<std::vector<std::byte>> compress(std::span<const std::byte> piece) {
    Compressor compressor;
    const auto packed = compressor.compress(piece);
    if (packed.empty()) {
        return std::nullopt;
    }
    return std::vector<std::byte>(packed.begin(), packed.end());
}

bool decompress(std::span<const std::byte> packed, std::span<std::byte> room) {
    return Decompressor().decompress(packed, room);
}

}  // namespace gpupool
