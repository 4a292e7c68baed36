#include "protocol/codec/memory_changes.h"

#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

namespace gpupool::codec {
namespace {

constexpr std::size_t kGroup =
    8;  // bytes covered by one mask byte; read and written as one word if all of them belong to the block

// This function and the next two read memory that other threads may be writing; that is their purpose.
__attribute__((no_sanitize("thread"))) std::uint64_t read_group(const std::byte* at) {
    return __atomic_load_n(reinterpret_cast<const std::uint64_t*>(at), __ATOMIC_RELAXED);
}

__attribute__((no_sanitize("thread"))) std::byte read_byte(const std::byte* at) {
    return static_cast<std::byte>(__atomic_load_n(reinterpret_cast<const unsigned char*>(at), __ATOMIC_RELAXED));
}

__attribute__((no_sanitize("thread"))) bool differ(const std::byte* one, const std::byte* other, std::size_t bytes) {
#if defined(__SANITIZE_THREAD__)
    for (std::size_t i = 0; i < bytes; ++i) {  // its interceptors also check memcmp()
        if (static_cast<const volatile std::byte*>(one)[i] != other[i]) {
            return true;
        }
    }
    return false;
#else
    return std::memcmp(one, other, bytes) != 0;
#endif
}

void write_byte(std::byte* at, std::byte value) {
    __atomic_store_n(reinterpret_cast<unsigned char*>(at), std::to_integer<unsigned char>(value), __ATOMIC_RELAXED);
}

std::uint64_t expand(std::uint8_t mask) {
    std::uint64_t wide = 0;
    for (unsigned i = 0; i < kGroup; ++i) {
        wide |= (mask >> i & 1u) != 0 ? std::uint64_t{0xff} << (8 * i) : 0;
    }
    return wide;
}

// Writes the group atomically, so that no thread sees half of a word, and leaves the unmasked bytes unchanged.
void merge_group(std::byte* at, std::uint64_t value, std::uint8_t mask) {
    auto* const word = reinterpret_cast<std::uint64_t*>(at);
    if (mask == 0xff) {
        __atomic_store_n(word, value, __ATOMIC_RELAXED);
        return;
    }
    const std::uint64_t wide = expand(mask);
    std::uint64_t present = __atomic_load_n(word, __ATOMIC_RELAXED);
    while (!__atomic_compare_exchange_n(word, &present, (present & ~wide) | (value & wide), true, __ATOMIC_RELEASE,
                                        __ATOMIC_RELAXED)) {
    }
}

// The bytes [first, last) of a group belong to the block.
struct Part {
    std::size_t first = 0, last = kGroup;
    [[nodiscard]] bool whole() const { return first == 0 && last == kGroup; }
};

Part part_of(const SharedBlock& block, std::uint64_t group_address) {
    Part part;
    part.first = group_address < block.address ? block.address - group_address : 0;
    part.last = std::min<std::uint64_t>(kGroup, block.address + block.bytes - group_address);
    return part;
}

// Gathers the changes of up to kChangeWindowBytes.
class Window {
  public:
    void add(std::uint64_t group_address, std::uint8_t mask, std::uint64_t value) {
        if (masks_.empty()) {
            first_ = group_address;
        }
        masks_.resize((group_address - first_) / kGroup, 0);  // unchanged groups in between
        masks_.push_back(mask);
        for (unsigned i = 0; i < kGroup; ++i) {
            if ((mask >> i & 1u) != 0) {
                changed_.push_back(static_cast<std::byte>(value >> (8 * i)));
            }
        }
    }
    void flush(const std::function<void(std::span<const std::byte>)>& emit) {
        if (masks_.empty()) {
            return;
        }
        const ChangeHeader header{first_, static_cast<std::uint32_t>(masks_.size() * kGroup),
                                  static_cast<std::uint32_t>(changed_.size())};
        record_.resize(sizeof header + masks_.size() + changed_.size());
        std::memcpy(record_.data(), &header, sizeof header);
        std::memcpy(record_.data() + sizeof header, masks_.data(), masks_.size());
        std::memcpy(record_.data() + sizeof header + masks_.size(), changed_.data(), changed_.size());
        emit(record_);
        masks_.clear();
        changed_.clear();
    }

  private:
    std::uint64_t first_ = 0;
    std::vector<std::uint8_t> masks_;
    std::vector<std::byte> changed_, record_;
};

void compare_group(const SharedBlock& block, std::uint64_t group_address, Window& window) {
    const Part part = part_of(block, group_address);
    const std::int64_t offset = static_cast<std::int64_t>(group_address - block.address);
    std::uint64_t value = 0, agreed = 0;
    auto* const value_bytes = reinterpret_cast<std::byte*>(&value);
    if (part.whole()) {
        value = read_group(block.memory + offset);
    } else {
        for (std::size_t i = part.first; i < part.last; ++i) {
            value_bytes[i] = read_byte(block.memory + offset + static_cast<std::int64_t>(i));
        }
    }
    const auto at = static_cast<std::size_t>(offset + static_cast<std::int64_t>(part.first));
    std::memcpy(reinterpret_cast<std::byte*>(&agreed) + part.first, block.baseline + at, part.last - part.first);
    const std::uint64_t difference = value ^ agreed;
    if (difference == 0) {
        return;
    }
    std::uint8_t mask = 0;
    for (unsigned i = 0; i < kGroup; ++i) {
        mask = static_cast<std::uint8_t>(mask | ((difference >> (8 * i) & 0xff) != 0 ? 1u << i : 0u));
    }
    std::memcpy(block.baseline + at, value_bytes + part.first, part.last - part.first);
    window.add(group_address, mask, value);
}

void write_group(const SharedBlock& block, std::uint64_t group_address, std::uint8_t mask, std::uint64_t value) {
    const Part part = part_of(block, group_address);
    const std::int64_t offset = static_cast<std::int64_t>(group_address - block.address);
    if (part.whole()) {
        merge_group(block.memory + offset, value, mask);
    }
    for (std::size_t i = part.first; i < part.last; ++i) {
        if ((mask >> i & 1u) != 0) {
            const std::int64_t at = offset + static_cast<std::int64_t>(i);
            const auto byte = static_cast<std::byte>(value >> (8 * i));
            if (!part.whole()) {
                write_byte(block.memory + at, byte);
            }
            block.baseline[at] = byte;
        }
    }
}

// Whether every byte whose bit is set lies in the block.
bool fits(const SharedBlock& block, const ChangeHeader& header, const std::byte* masks) {
    const std::uint64_t end = block.address + block.bytes, window_end = header.address + header.window_bytes;
    if (window_end < header.address || header.address + kGroup <= block.address || window_end >= end + kGroup) {
        return false;
    }
    const auto mask_at = [&](std::uint64_t group) {
        return static_cast<std::uint8_t>(masks[(group - header.address) / kGroup]);
    };
    const Part first = part_of(block, header.address), last = part_of(block, window_end - kGroup);
    return (mask_at(header.address) & ((1u << first.first) - 1)) == 0 &&
           (mask_at(window_end - kGroup) >> last.last) == 0;
}

}  // namespace

Baseline::Baseline(std::size_t bytes) : bytes_(bytes) {
    void* const place =
        mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    data_ = place == MAP_FAILED ? nullptr : static_cast<std::byte*>(place);
}

Baseline::~Baseline() {
    if (data_ != nullptr) {
        munmap(data_, bytes_);
    }
}

Baseline::Baseline(Baseline&& other) noexcept : data_(std::exchange(other.data_, nullptr)), bytes_(other.bytes_) {}

Baseline& Baseline::operator=(Baseline&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
}

void find_changes(const SharedBlock& block, const std::function<void(std::span<const std::byte>)>& emit) {
    static_assert(std::endian::native == std::endian::little);
    Window window;
    const std::uint64_t end = block.address + block.bytes;
    for (std::uint64_t at = block.address; at < end;) {
        const std::uint64_t next = std::min(end, (at / kChangeWindowBytes + 1) * kChangeWindowBytes);
        const std::uint64_t offset = at - block.address;
        if (differ(block.memory + offset, block.baseline + offset, next - at)) {
            for (std::uint64_t group = at / kGroup * kGroup; group < next; group += kGroup) {
                compare_group(block, group, window);
            }
            window.flush(emit);
        }
        at = next;
    }
}

bool apply_changes(std::span<const std::byte> record, const std::function<const SharedBlock*(std::uint64_t)>& find) {
    ChangeHeader header{};
    if (record.size() < sizeof header) {
        return false;
    }
    std::memcpy(&header, record.data(), sizeof header);
    const std::size_t groups = header.window_bytes / kGroup;
    if (header.address % kGroup != 0 || header.window_bytes % kGroup != 0 || groups == 0 ||
        header.window_bytes > kChangeWindowBytes || header.changed_bytes > header.window_bytes ||
        record.size() < sizeof header + groups + header.changed_bytes) {
        return false;
    }
    const std::byte* const masks = record.data() + sizeof header;
    const std::byte* changed = masks + groups;
    std::size_t bits = 0;
    for (std::size_t i = 0; i < groups; ++i) {
        bits += static_cast<std::size_t>(std::popcount(static_cast<std::uint8_t>(masks[i])));
    }
    const auto first = static_cast<unsigned>(std::countr_zero(static_cast<std::uint8_t>(masks[0])));
    const SharedBlock* const block = bits == header.changed_bytes ? find(header.address + first % kGroup) : nullptr;
    if (block == nullptr || !fits(*block, header, masks)) {
        return false;
    }
    for (std::size_t i = 0; i < groups; ++i) {
        const auto mask = static_cast<std::uint8_t>(masks[i]);
        std::uint64_t value = 0;
        for (unsigned b = 0; b < kGroup; ++b) {
            if ((mask >> b & 1u) != 0) {
                value |= std::to_integer<std::uint64_t>(*changed++) << (8 * b);
            }
        }
        if (mask != 0) {
            write_group(*block, header.address + i * kGroup, mask, value);
        }
    }
    return true;
}

}  // namespace gpupool::codec
