// The contents of one entry: stored as they are, zstd frames, LZ4 raw blocks.
//
// Ownership: `Unpacked` either owns its bytes or points at the entry's (stored entries are not copied), so it must not
// outlive the container. Threads: any. Errors: Result; the size stated in the entry is a promise that is checked, and
// nothing larger than `limit_bytes` is ever allocated.
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
    // For PTX: without the NULs that pad it.
    std::string_view text() const noexcept;

  private:
    std::unique_ptr<std::byte[]> owned_;
    Bytes bytes_;
};

// Expects an entry as `container_entries` or `image_entries` gave it.
Result<Unpacked> unpack(const Entry& entry, std::uint64_t limit_bytes = max_unpacked_bytes);

}  // namespace gpupool::fatbin
