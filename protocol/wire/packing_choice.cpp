#include "protocol/wire/packing_choice.h"

#include <algorithm>

namespace gpupool::wire {
namespace {

// A moving average: the newest measurement has a weight of 1 / parts.
double mean(double before, double now, double parts = 4) {
    return before == 0 ? now : before + (now - before) / parts;
}

}  // namespace

PackingChoice::Next PackingChoice::next(std::uint64_t transfer, std::size_t bytes) {
    if (mode_ != CompressionMode::when_it_pays) {
        return mode_ == CompressionMode::always ? Next::pack : Next::send;
    }
    if (transfer != transfer_) {
        transfer_ = transfer;
        pieces_until_sample_ = 0;
    }
    if (pieces_until_sample_ == 0) {
        const double line_ns = line_ * static_cast<double>(bytes);
        if (kSampleNs > line_ns * kMaxForSample || bytes <= kSampleBytes) {
            return Next::send;
        }
        pieces_until_sample_ = kPiecesPerSample;
        return Next::sample;
    }
    --pieces_until_sample_;
    return packing_ + ratio_ * line_ < (1 - kLeastSaved) * line_ ? Next::pack : Next::send;
}

void PackingChoice::packed(std::size_t bytes, std::size_t packed_bytes, Duration took) {
    const auto of = static_cast<double>(bytes);
    // A long measurement may be due to sharing the processor, so a shorter one replaces the average at once.
    const double now = took.count() / of;
    packing_ = std::min(now, mean(packing_, now));
    ratio_ = packed_bytes == 0 ? 1 : static_cast<double>(packed_bytes) / of;
}

void PackingChoice::sent(std::size_t left_bytes, bool behind, Duration took) {
    if (left_bytes < kLeastLeftBytes || took < kLeastTime) {
        return;
    }
    const double line = took.count() / static_cast<double>(left_bytes);
    // If nothing remained unsent, the line could have carried more; or only the local buffers accepted the data, some
    // of which may be invisible here. So such a measurement may lower the time per byte but not raise it.
    line_ = behind ? mean(line_, line) : std::min(line_, mean(line_, line, kPartsWhereItKeptUp));
}

}  // namespace gpupool::wire
