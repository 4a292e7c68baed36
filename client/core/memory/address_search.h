// Finds addresses in data that goes to the GPU, so that a kernel can use the memory that they name.
//
// Ownership: none.
// Threads: any.
// Errors: none.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

namespace gpupool::client {

// Larger data is not searched.
constexpr std::size_t kMaxSearchedBytes = 256u << 10;

struct AddressBounds {
    std::uint64_t begin = 0, end = 0;

    [[nodiscard]] bool contains(std::uint64_t address) const { return address - begin < end - begin; }
};

// Calls found(address) for each word of `data` within `bounds`. `destination`: where the data will be. A kernel reads
// words at multiples of 8.
template <class Found>
void find_addresses(std::span<const std::byte> data, std::uint64_t destination, const AddressBounds& bounds,
                    Found found) {
    constexpr std::size_t kWord = sizeof(std::uint64_t);
    constexpr std::size_t kGroup = 8;  // words that are tested before the first branch
    const auto word_at = [&](std::size_t offset) {
        std::uint64_t word = 0;
        std::memcpy(&word, data.data() + offset, kWord);
        return word;
    };
    const auto visit = [&](std::size_t from, std::size_t to) {
        for (std::size_t at = from; at + kWord <= to; at += kWord) {
            if (const std::uint64_t word = word_at(at); bounds.contains(word)) {
                found(word);
            }
        }
    };
    std::size_t at = (kWord - destination % kWord) % kWord;
    for (; at + kGroup * kWord <= data.size(); at += kGroup * kWord) {
        bool any = false;
        for (std::size_t i = 0; i < kGroup; ++i) {
            any |= bounds.contains(word_at(at + i * kWord));
        }
        if (any) [[unlikely]] {
            visit(at, at + kGroup * kWord);
        }
    }
    visit(at, data.size());
}

}  // namespace gpupool::client
