// The rows of host memory that a 2D or 3D copy touches. They are sent packed: row after row and slice after slice,
// without gaps.
//
// Ownership: none; the memory is the application's.
// Threads: one at a time; const methods any.
// Errors: describe() returns false.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "client/core/graphs/graph_hosts.h"
#include "protocol/codec/record.h"

namespace gpupool::client {

// Visits the parts of rows that correspond to `bytes` of packed data at `offset`: visit(row, slice, offset in the row,
// offset in the data, bytes).
template <class Visit>
void each_part_of_rows(std::uint64_t width_bytes, std::uint64_t rows, std::uint64_t offset, std::size_t bytes,
                       Visit visit) {
    std::uint64_t row = offset / width_bytes % rows, slice = offset / width_bytes / rows;
    std::uint64_t within = offset % width_bytes;
    for (std::size_t done = 0; done < bytes;) {
        const auto count = static_cast<std::size_t>(std::min<std::uint64_t>(width_bytes - within, bytes - done));
        visit(row, slice, within, done, count);
        done += count;
        within = 0;
        if (++row == rows) {
            row = 0;
            ++slice;
        }
    }
}

class PackedRows {
  public:
    // False if the notice's rows do not lie within the memory. Then call nothing else.
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
            return false;  // this check also keeps the next lines from overflowing
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
        each_part(0, out.size(), [&](const std::byte* at, std::size_t done, std::size_t count) {
            std::memcpy(out.data() + done, at, count);
        });
        return out;
    }
    void scatter(std::uint64_t offset, std::span<const std::byte> packed) const {
        each_part(offset, packed.size(), [&](std::byte* at, std::size_t done, std::size_t count) {
            std::memcpy(at, packed.data() + done, count);
        });
    }

  private:
    [[nodiscard]] std::byte* row(std::uint64_t r, std::uint64_t slice) const {
        return base_ + ((notice_.z + slice) * notice_.height + notice_.y + r) * notice_.pitch_bytes + notice_.x_bytes;
    }
    // Calls visit(place, done, count) for each part of a row that has some of the packed bytes [offset, offset +
    // bytes): `count` bytes at `place`, which follow `done` earlier ones.
    template <class Visit>
    void each_part(std::uint64_t offset, std::size_t bytes, Visit visit) const {
        each_part_of_rows(notice_.width_bytes, notice_.rows, offset, bytes,
                          [&](std::uint64_t r, std::uint64_t slice, std::uint64_t within, std::size_t done,
                              std::size_t count) { visit(row(r, slice) + within, done, count); });
    }

    codec::GraphCopyNotice notice_{};
    std::byte* base_ = nullptr;
};

}  // namespace gpupool::client
