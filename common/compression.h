// Compression of data for the wire (code images and pieces of copies), with zstd at its fastest level.
//
// Ownership: values; the span that a Compressor returns points into the Compressor. Threads: the functions, any; an
// object, one at a time. Errors: decompress() reports damaged data and never writes outside of `room`. The input must
// not change during the call.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <vector>

struct ZSTD_CCtx_s;
struct ZSTD_DCtx_s;

namespace gpupool {

// Keeps its memory from one piece to the next; allocates it with the first.
class Compressor {
  public:
    // The result is valid until the next call. Empty if compression would save less than an eighth.
    std::span<const std::byte> compress(std::span<const std::byte> piece);

  private:
    struct Free {
        void operator()(ZSTD_CCtx_s* context) const noexcept;
    };
    std::unique_ptr<ZSTD_CCtx_s, Free> context_;
    std::vector<std::byte> packed_;
};

class Decompressor {
  public:
    // False unless `packed` is a piece that fills `room` exactly.
    bool decompress(std::span<const std::byte> packed, std::span<std::byte> room);

  private:
    struct Free {
        void operator()(ZSTD_DCtx_s* context) const noexcept;
    };
    std::unique_ptr<ZSTD_DCtx_s, Free> context_;
};

// Without an object, for callers with few pieces. Nothing if compression would save less than an eighth.
std::optional<std::vector<std::byte>> compress(std::span<const std::byte> piece);
bool decompress(std::span<const std::byte> packed, std::span<std::byte> room);

}  // namespace gpupool
