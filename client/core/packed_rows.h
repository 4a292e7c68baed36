// The rows of host memory that a shaped copy touches, which travel packed: rows, then slices, without gaps.
#pragma once

#include <cstddef>
#include <cstring>
#include <span>
#include <vector>

#include "client/core/graph_hosts.h"
#include "protocol/codec/record.h"

namespace gpupool::client {

class PackedRows {
  public:
    // False when the notice's rows do not lie within the memory: then nothing else may be asked.
    bool describe(const codec::GraphCopyNotice& notice, const GraphHosts::Memory& memory) {
        constexpr std::uint64_t kLimit = std::uint64_t{1} << 46;
        notice_ = notice;
        base_ = memory.place;
        for (const std::uint64_t value : {notice.x_bytes, notice.y, notice.z, notice.pitch_bytes, notice.height,
                                          notice.width_bytes, notice.rows, notice.slices}) {
            if (value > kLimit) {
                return false;
            }
        }
        if (notice.width_bytes == 0 || notice.rows == 0 || notice.slices == 0) {
            return false;
        }
        const auto last_row =
            static_cast<unsigned __int128>(notice.z + notice.slices - 1) * notice.height + notice.y + notice.rows - 1;
        if (notice.pitch_bytes == 0 || last_row > memory.bytes) {
            return false;  // and what follows does not overflow
        }
        const auto last = last_row * notice.pitch_bytes + notice.x_bytes + notice.width_bytes;
        return last <= memory.bytes &&
               static_cast<unsigned __int128>(notice.rows) * notice.slices <= memory.bytes / notice.width_bytes;
    }

    [[nodiscard]] std::uint64_t bytes() const { return notice_.width_bytes * notice_.rows * notice_.slices; }
    [[nodiscard]] bool contiguous() const { return notice_.rows == 1 && notice_.slices == 1; }
    [[nodiscard]] std::byte* place() const { return row(0, 0); }
    [[nodiscard]] std::span<const std::byte> as_span() const { return {row(0, 0), bytes()}; }

    [[nodiscard]] std::vector<std::byte> packed() const {
        std::vector<std::byte> out(bytes());
        each_row([&](const std::byte* at, std::size_t offset) {
            std::memcpy(out.data() + offset, at, notice_.width_bytes);
        });
        return out;
    }
    void scatter(std::span<const std::byte> data) const {
        each_row(
            [&](std::byte* at, std::size_t offset) { std::memcpy(at, data.data() + offset, notice_.width_bytes); });
    }

  private:
    [[nodiscard]] std::byte* row(std::uint64_t r, std::uint64_t slice) const {
        return base_ + ((notice_.z + slice) * notice_.height + notice_.y + r) * notice_.pitch_bytes + notice_.x_bytes;
    }
    template <class Visit>
    void each_row(Visit visit) const {
        std::size_t offset = 0;
        for (std::uint64_t slice = 0; slice < notice_.slices; ++slice) {
            for (std::uint64_t r = 0; r < notice_.rows; ++r, offset += notice_.width_bytes) {
                visit(row(r, slice), offset);
            }
        }
    }

    codec::GraphCopyNotice notice_{};
    std::byte* base_ = nullptr;
};

}  // namespace gpupool::client
