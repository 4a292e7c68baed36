// The layout of a fat binary container in memory: magic numbers, field offsets, flags. Nothing here parses anything.
//
// A container is a header of 16 bytes followed by entries. An entry is a header of at least 64 bytes followed by its
// payload, padded to a multiple of eight. All fields are little endian. Offsets inside an entry count from its start,
// so that an entry can be copied to another container unchanged.
//
// Ownership: constants. Threads: any. Errors: none.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

namespace gpupool::fatbin {

constexpr std::uint32_t kWrapperMagic = 0x466243B1;
constexpr std::uint32_t kContainerMagic = 0xBA55ED50;
constexpr std::uint32_t kElfMagic = 0x464C457F;

// Version 1 names a file in its last word, version 2 a NULL-terminated list of further containers (relocatable code).
constexpr std::uint32_t kWrapperVersionSingle = 1;
constexpr std::uint32_t kWrapperVersionLinked = 2;

// The structure that nvcc puts into .nvFatBinSegment and that cudart passes to the driver.
struct Wrapper {
    std::uint32_t magic;
    std::uint32_t version;
    const void* container;
    const void* filename_or_prelinked;
};
static_assert(sizeof(Wrapper) == 24);

constexpr std::size_t kContainerHeaderBytes = 16;
namespace container_field {
constexpr std::size_t kVersion = 4;       // u16
constexpr std::size_t kHeaderBytes = 6;   // u16
constexpr std::size_t kEntriesBytes = 8;  // u64, bytes that follow the header
}  // namespace container_field
constexpr std::uint16_t kContainerVersion = 1;

constexpr std::size_t kEntryHeaderBytes = 0x40;
namespace entry_field {
constexpr std::size_t kKind = 0x00;             // u16
constexpr std::size_t kHeaderBytes = 0x04;      // u32
constexpr std::size_t kPayloadBytes = 0x08;     // u64, padded to eight
constexpr std::size_t kCompressedBytes = 0x10;  // u32 without padding, 0: stored
constexpr std::size_t kMinor = 0x18;            // u16
constexpr std::size_t kMajor = 0x1A;            // u16
constexpr std::size_t kArch = 0x1C;             // u32, decimal: 90 is compute capability 9.0
constexpr std::size_t kFlags = 0x28;            // u64
constexpr std::size_t kUnpackedBytes = 0x38;    // u64, 0 when stored
}  // namespace entry_field

enum class Kind : std::uint16_t { ptx = 1, cubin = 2, lto_ir = 8 };

namespace flag {
constexpr std::uint64_t kDebug = 0x2;
constexpr std::uint64_t kLz4 = 0x2000;
constexpr std::uint64_t kZstd = 0x8000;
constexpr std::uint64_t kArchSpecific = 0x100000;    // "a": exactly this compute capability
constexpr std::uint64_t kFamilySpecific = 0x200000;  // "f": this compute capability and later ones of its family
}  // namespace flag

// Limits on what is read, from any source.
constexpr std::uint64_t kMaxImageBytes = std::uint64_t{4} << 30;
constexpr std::uint64_t kMaxUnpackedBytes = std::uint64_t{1} << 30;
constexpr std::size_t kMaxEntries = 4096;
constexpr std::size_t kMaxPrelinked = 65536;

// Unaligned little-endian read; the caller has checked the bounds.
template <class T>
T read_at(const std::byte* from, std::size_t offset) noexcept {
    T value;
    std::memcpy(&value, from + offset, sizeof value);
    return value;
}

}  // namespace gpupool::fatbin
