#include "protocol/wire/frame_reader.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace gpupool::wire {

Status FrameReader::refill() {
    auto received = connection_.receive(buffer_);
    if (!received) {
        return received.error();
    }
    begin_ = 0;
    end_ = *received;
    return {};
}

Status FrameReader::read(std::span<std::byte> out) {
    while (!out.empty()) {
        if (begin_ == end_) {
            if (out.size() >= kDirectBytes) {
                auto received = connection_.receive(out);
                if (!received) {
                    return received.error();
                }
                out = out.subspan(*received);
                continue;
            }
            GPUPOOL_TRY(refill());
        }
        const std::size_t count = std::min(out.size(), end_ - begin_);
        std::memcpy(out.data(), buffer_.data() + begin_, count);
        begin_ += count;
        out = out.subspan(count);
    }
    return {};
}

void FrameReader::gather(std::size_t bytes) {
    if (buffered_bytes() >= bytes) {
        return;
    }
    std::memmove(buffer_.data(), buffer_.data() + begin_, buffered_bytes());
    end_ -= std::exchange(begin_, 0);
    const auto received = connection_.receive_some(std::span(buffer_).subspan(end_));
    end_ += received ? *received : 0;
}

bool FrameReader::peek(std::span<std::byte> out) const {
    if (buffered_bytes() < out.size()) {
        return false;
    }
    std::memcpy(out.data(), buffer_.data() + begin_, out.size());
    return true;
}

Status FrameReader::skip(std::size_t bytes) {
    while (bytes > 0) {
        if (begin_ == end_) {
            GPUPOOL_TRY(refill());
        }
        const std::size_t count = std::min(bytes, end_ - begin_);
        begin_ += count;
        bytes -= count;
    }
    return {};
}

}  // namespace gpupool::wire
