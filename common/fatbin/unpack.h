// Unpacks the contents of one entry: stored, a zstd frame, or a raw LZ4 block.
//
// Ownership: `Unpacked` either owns its bytes or points at the entry's (stored entries are not copied), so it must not
// outlive the container. Threads: any. Errors: Result; the size stated in the entry is checked, and never more than
// `limit_bytes` is allocated.
#pragma once

#include <memory>
#include <string_view>

#include "common/fatbin/image.h"

namespace gpupool::fatbin {

class Unpacked {
  public:
    explicit Unpacked(Bytes borrowed) : bytes_(borrowed) {}
    Unpacked(std::unique_ptr<std::byte[]> owned, std::size_t size_bytes)
        : owned_(std::move(owned)), bytes_(owned_.get(), size_bytes) {}

    Bytes bytes() const noexcept { return bytes_; }
    // For PTX: the text without the NULs that pad it.
    std::string_view text() const noexcept;

  private:
    std::unique_ptr<std::byte[]> owned_;
    Bytes bytes_;
};

// `entry` must come from `container_entries` or `image_entries`.
Result<Unpacked> unpack(const Entry& entry, std::uint64_t limit_bytes = kMaxUnpackedBytes);

}  // namespace gpupool::fatbin
