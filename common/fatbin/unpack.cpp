#include "common/fatbin/unpack.h"

#include <fmt/format.h>
#include <lz4.h>
#include <zstd.h>

namespace gpupool::fatbin {
namespace {

// An LZ4 block cannot expand by more than this factor; a larger claim is refused before memory is allocated.
constexpr std::uint64_t kLz4MaxRatio = 255;

Status check_lz4(const Entry& entry) {
    if (entry.unpacked_bytes > entry.stored.size() * kLz4MaxRatio + kLz4MaxRatio ||
        entry.unpacked_bytes > LZ4_MAX_INPUT_SIZE || entry.stored.size() > LZ4_MAX_INPUT_SIZE) {
        return malformed(fmt::format("{} LZ4 bytes cannot hold {}", entry.stored.size(), entry.unpacked_bytes));
    }
    return {};
}

Status check_zstd(const Entry& entry) {
    const auto framed = ZSTD_getFrameContentSize(entry.stored.data(), entry.stored.size());
    if (framed == ZSTD_CONTENTSIZE_ERROR) {
        return malformed("entry is not a zstd frame");
    }
    if (framed != ZSTD_CONTENTSIZE_UNKNOWN && framed != entry.unpacked_bytes) {
        return malformed(fmt::format("zstd frame of {} bytes, entry states {}", framed, entry.unpacked_bytes));
    }
    return {};
}

Status expand(const Entry& entry, std::byte* target) {
    std::uint64_t written = 0;
    if ((entry.flags & flag::kLz4) != 0) {
        const int result =
            LZ4_decompress_safe(reinterpret_cast<const char*>(entry.stored.data()), reinterpret_cast<char*>(target),
                                static_cast<int>(entry.stored.size()), static_cast<int>(entry.unpacked_bytes));
        if (result < 0) {
            return malformed("LZ4 block is damaged");
        }
        written = static_cast<std::uint64_t>(result);
    } else {
        const std::size_t result =
            ZSTD_decompress(target, entry.unpacked_bytes, entry.stored.data(), entry.stored.size());
        if (ZSTD_isError(result)) {
            return malformed(fmt::format("zstd frame is damaged: {}", ZSTD_getErrorName(result)));
        }
        written = result;
    }
    if (written != entry.unpacked_bytes) {
        return malformed(fmt::format("entry states {} bytes, but unpacked to {}", entry.unpacked_bytes, written));
    }
    return {};
}

}  // namespace

std::string_view Unpacked::text() const noexcept {
    std::string_view text(reinterpret_cast<const char*>(bytes_.data()), bytes_.size());
    return text.substr(0, text.find('\0'));
}

Result<Unpacked> unpack(const Entry& entry, std::uint64_t limit_bytes) {
    if (entry.unpacked_bytes > limit_bytes) {
        return Error{ErrorCode::limit_exceeded,
                     fmt::format("code image: entry of {} bytes exceeds {}", entry.unpacked_bytes, limit_bytes)};
    }
    if (!entry.compressed) {
        return Unpacked(entry.stored);
    }
    GPUPOOL_TRY((entry.flags & flag::kLz4) != 0 ? check_lz4(entry) : check_zstd(entry));
    // Not zeroed: a false claim then costs address space, not memory.
    std::unique_ptr<std::byte[]> target(new std::byte[entry.unpacked_bytes]);
    GPUPOOL_TRY(expand(entry, target.get()));
    return Unpacked(std::move(target), entry.unpacked_bytes);
}

}  // namespace gpupool::fatbin
