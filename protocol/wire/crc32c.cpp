// CRC-32C (Castagnoli): uses the processor's instruction if it has one, else a table.
#include <array>
#include <cstring>

#include "protocol/wire/frame.h"

#if defined(__x86_64__)
#include <nmmintrin.h>
#endif

namespace gpupool::wire {
namespace {

constexpr std::uint32_t kPolynomial = 0x82f63b78;  // reflected

// Eight tables: table[k][b] is the contribution of byte b with k more bytes behind it.
using Tables = std::array<std::array<std::uint32_t, 256>, 8>;

constexpr Tables make_tables() {
    Tables tables{};
    for (std::uint32_t byte = 0; byte < 256; ++byte) {
        std::uint32_t crc = byte;
        for (int bit = 0; bit < 8; ++bit) {
            crc = (crc >> 1) ^ ((crc & 1) ? kPolynomial : 0);
        }
        tables[0][byte] = crc;
    }
    for (std::size_t k = 1; k < 8; ++k) {
        for (std::size_t byte = 0; byte < 256; ++byte) {
            const std::uint32_t before = tables[k - 1][byte];
            tables[k][byte] = (before >> 8) ^ tables[0][before & 0xff];
        }
    }
    return tables;
}

constexpr Tables kTables = make_tables();

std::uint64_t load64(const std::byte* from) noexcept {
    std::uint64_t value = 0;
    std::memcpy(&value, from, sizeof(value));
    return value;
}

std::uint32_t by_table(const std::byte* data, std::size_t bytes, std::uint32_t crc) noexcept {
    for (; bytes >= 8; data += 8, bytes -= 8) {
        const std::uint64_t word = load64(data) ^ crc;
        crc = 0;
        for (std::size_t i = 0; i < 8; ++i) {
            crc ^= kTables[7 - i][(word >> (8 * i)) & 0xff];
        }
    }
    for (; bytes > 0; ++data, --bytes) {
        crc = (crc >> 8) ^ kTables[0][(crc ^ std::to_integer<std::uint32_t>(*data)) & 0xff];
    }
    return crc;
}

#if defined(__x86_64__)
// The instruction has a latency of three cycles and a throughput of one per cycle: three independent streams over
// neighbouring blocks use it fully. Joining them needs the effect of kBlockBytes zero bytes on a CRC, which is linear
// and so can be tabulated.
constexpr std::size_t kBlockBytes = 1024;

constexpr std::uint32_t after_zeros(std::uint32_t crc) {
    for (std::size_t i = 0; i < kBlockBytes; ++i) {
        crc = (crc >> 8) ^ kTables[0][crc & 0xff];
    }
    return crc;
}

using ShiftTables = std::array<std::array<std::uint32_t, 256>, 4>;

ShiftTables make_shift_tables() noexcept {
    std::array<std::uint32_t, 32> of_bit{};
    for (std::size_t bit = 0; bit < 32; ++bit) {
        of_bit[bit] = after_zeros(std::uint32_t{1} << bit);
    }
    ShiftTables tables{};
    for (std::size_t k = 0; k < 4; ++k) {
        for (std::size_t byte = 0; byte < 256; ++byte) {
            std::uint32_t crc = 0;
            for (std::size_t bit = 0; bit < 8; ++bit) {
                crc ^= (byte >> bit & 1) ? of_bit[8 * k + bit] : 0;
            }
            tables[k][byte] = crc;
        }
    }
    return tables;
}

std::uint32_t shift_block(const ShiftTables& tables, std::uint32_t crc) noexcept {
    return tables[0][crc & 0xff] ^ tables[1][crc >> 8 & 0xff] ^ tables[2][crc >> 16 & 0xff] ^ tables[3][crc >> 24];
}

__attribute__((target("sse4.2"))) std::uint32_t by_instruction(const std::byte* data, std::size_t bytes,
                                                               std::uint32_t crc) noexcept {
    static const ShiftTables shift = make_shift_tables();
    for (; bytes >= 3 * kBlockBytes; data += 3 * kBlockBytes, bytes -= 3 * kBlockBytes) {
        std::uint64_t a = crc;
        std::uint64_t b = 0;
        std::uint64_t c = 0;
        for (std::size_t i = 0; i < kBlockBytes; i += 8) {
            a = _mm_crc32_u64(a, load64(data + i));
            b = _mm_crc32_u64(b, load64(data + kBlockBytes + i));
            c = _mm_crc32_u64(c, load64(data + 2 * kBlockBytes + i));
        }
        const std::uint32_t ab = shift_block(shift, static_cast<std::uint32_t>(a)) ^ static_cast<std::uint32_t>(b);
        crc = shift_block(shift, ab) ^ static_cast<std::uint32_t>(c);
    }
    std::uint64_t wide = crc;
    for (; bytes >= 8; data += 8, bytes -= 8) {
        wide = _mm_crc32_u64(wide, load64(data));
    }
    crc = static_cast<std::uint32_t>(wide);
    for (; bytes > 0; ++data, --bytes) {
        crc = _mm_crc32_u8(crc, std::to_integer<std::uint8_t>(*data));
    }
    return crc;
}
#endif

}  // namespace

std::uint32_t crc32c_portable(std::span<const std::byte> data, std::uint32_t seed) noexcept {
    return ~by_table(data.data(), data.size(), ~seed);
}

std::uint32_t crc32c(std::span<const std::byte> data, std::uint32_t seed) noexcept {
#if defined(__x86_64__)
    static const bool has_instruction = __builtin_cpu_supports("sse4.2") != 0;
    if (has_instruction) {
        return ~by_instruction(data.data(), data.size(), ~seed);
    }
#endif
    return crc32c_portable(data, seed);
}

}  // namespace gpupool::wire
