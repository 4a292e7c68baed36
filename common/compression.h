// Data made smaller for the wire, by zstd at its fastest: code images and pieces of copies.
//
// Ownership: values; what a Compressor gives is its own. Threads: functions any, an object one at a time. Errors:
// damaged data is said to be so; nothing is ever written outside of the room that was given. What is compressed must
// not change meanwhile.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <vector>

struct ZSTD_CCtx_s;
struct ZSTD_DCtx_s;

namespace gpupool {

// Keeps its memory from one piece to the next, which it takes with the first.
class Compressor {
  public:
    // Valid until the next call. Empty where it would not become smaller by an eighth.
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

// The same where pieces are few. Nothing where it would not become smaller by an eighth.
std::optional<std::vector<std::byte>> compress(std::span<const std::byte> piece);
bool decompress(std::span<const std::byte> packed, std::span<std::byte> room);

}  // namespace gpupool
