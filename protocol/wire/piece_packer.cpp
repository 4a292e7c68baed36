#include "protocol/wire/piece_packer.h"

#include <algorithm>
#include <new>

namespace gpupool::wire {

std::span<const std::byte> PiecePacker::pack(std::uint64_t transfer, std::span<const std::byte> data) {
    began_ = Clock::now();
    unsent_before_ = line_.unsent_bytes();
    auto next = choice_.next(transfer, data.size());
    if (next == PackingChoice::Next::sample) {
        (void)compress(data.subspan((data.size() - PackingChoice::kSampleBytes) / 2, PackingChoice::kSampleBytes));
        next = choice_.next(transfer, data.size());
    }
    const auto packed = next == PackingChoice::Next::pack ? compress(data) : std::span<const std::byte>();
    if (line_.unsent_bytes() == 0) {  // the line was idle for a while: the time until now says nothing about it
        began_ = Clock::now();
        unsent_before_ = 0;
    }
    return packed;
}

// Compresses a copy, because the application may write to the memory meanwhile, which no compressor promises to
// tolerate.
std::span<const std::byte> PiecePacker::compress(std::span<const std::byte> data) {
    const auto began = Clock::now();
    std::span<const std::byte> packed;
    try {
        copy_.assign(data.begin(), data.end());
        packed = compressor_.compress(copy_);
    } catch (const std::bad_alloc&) {  // then it is sent uncompressed
    }
    choice_.packed(data.size(), packed.size(), Clock::now() - began);
    return packed;
}

void PiecePacker::sent(std::size_t bytes) {
    const std::size_t unsent = line_.unsent_bytes();
    const std::size_t all = unsent_before_ + bytes;
    choice_.sent(all - std::min(unsent, all), unsent != 0, Clock::now() - began_);
}

}  // namespace gpupool::wire
