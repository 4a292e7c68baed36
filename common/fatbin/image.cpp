#include "common/fatbin/image.h"

#include <fmt/format.h>

#include <cstring>

namespace gpupool::fatbin {
namespace {

constexpr std::size_t kElfHeaderBytes = 64;

Error too_large(std::string message) {
    return Error{ErrorCode::limit_exceeded, "code image: " + std::move(message)};
}

const std::byte* bytes_at(const void* pointer) {
    return static_cast<const std::byte*>(pointer);
}

// Compares bytewise, so that a text shorter than four bytes is not read past its NUL.
bool starts_with(const std::byte* image, std::uint32_t magic) {
    for (int i = 0; i < 4; ++i) {
        if (image[i] != static_cast<std::byte>(magic >> (8 * i))) {
            return false;
        }
    }
    return true;
}

// Length of the container, from its header, which the caller knows to be readable.
Result<std::uint64_t> container_bytes(const std::byte* header) {
    const auto version = read_at<std::uint16_t>(header, container_field::kVersion);
    const auto header_bytes = read_at<std::uint16_t>(header, container_field::kHeaderBytes);
    const auto entries_bytes = read_at<std::uint64_t>(header, container_field::kEntriesBytes);
    if (version != kContainerVersion) {
        return Error{ErrorCode::unsupported, fmt::format("code image: fat binary version {} is not known", version)};
    }
    if (header_bytes < kContainerHeaderBytes) {
        return malformed(fmt::format("fat binary header of {} bytes is too short", header_bytes));
    }
    if (entries_bytes > kMaxImageBytes - header_bytes) {
        return too_large(fmt::format("fat binary of {} bytes exceeds {}", entries_bytes, kMaxImageBytes));
    }
    return header_bytes + entries_bytes;
}

Result<Bytes> trusted_container(const void* pointer) {
    if (pointer == nullptr) {
        return malformed("fat binary wrapper without a container");
    }
    const std::byte* header = bytes_at(pointer);
    if (!starts_with(header, kContainerMagic)) {
        return malformed("fat binary wrapper does not lead to a container");
    }
    auto length = container_bytes(header);
    if (!length) {
        return length.error();
    }
    return Bytes(header, *length);
}

Result<Image> trusted_wrapper(const void* pointer) {
    Wrapper wrapper;
    std::memcpy(&wrapper, pointer, sizeof wrapper);
    if (wrapper.version != kWrapperVersionSingle && wrapper.version != kWrapperVersionLinked) {
        return Error{ErrorCode::unsupported,
                     fmt::format("code image: fat binary wrapper version {} is not known", wrapper.version)};
    }
    auto container = trusted_container(wrapper.container);
    if (!container) {
        return container.error();
    }
    Image image{Form::wrapper, *container, {}};
    if (wrapper.version == kWrapperVersionLinked && wrapper.filename_or_prelinked != nullptr) {
        const auto* list = static_cast<const void* const*>(wrapper.filename_or_prelinked);
        for (std::size_t i = 0; list[i] != nullptr; ++i) {
            if (i == kMaxPrelinked) {
                return too_large("too many prelinked fat binaries");
            }
            auto part = trusted_container(list[i]);
            if (!part) {
                return part.error().within(fmt::format("prelinked fat binary {}", i));
            }
            image.prelinked.push_back(*part);
        }
    }
    return image;
}

Result<Entry> entry_at(Bytes rest, std::size_t offset) {
    if (rest.size() < kEntryHeaderBytes) {
        return malformed(fmt::format("entry at {:#x} is cut off after {} bytes", offset, rest.size()));
    }
    const std::byte* at = rest.data();
    const auto header_bytes = read_at<std::uint32_t>(at, entry_field::kHeaderBytes);
    const auto payload_bytes = read_at<std::uint64_t>(at, entry_field::kPayloadBytes);
    const auto compressed_bytes = read_at<std::uint32_t>(at, entry_field::kCompressedBytes);
    if (header_bytes < kEntryHeaderBytes || header_bytes > rest.size()) {
        return malformed(fmt::format("entry at {:#x} has a header of {} bytes", offset, header_bytes));
    }
    if (payload_bytes > rest.size() - header_bytes) {
        return malformed(fmt::format("entry at {:#x} claims {} bytes, {} are left", offset, payload_bytes,
                                     rest.size() - header_bytes));
    }
    if (compressed_bytes > payload_bytes) {
        return malformed(fmt::format("entry at {:#x} claims {} compressed bytes in a payload of {}", offset,
                                     compressed_bytes, payload_bytes));
    }
    Entry entry;
    entry.kind = static_cast<Kind>(read_at<std::uint16_t>(at, entry_field::kKind));
    entry.arch = read_at<std::uint32_t>(at, entry_field::kArch);
    entry.flags = read_at<std::uint64_t>(at, entry_field::kFlags);
    entry.major = read_at<std::uint16_t>(at, entry_field::kMajor);
    entry.minor = read_at<std::uint16_t>(at, entry_field::kMinor);
    entry.compressed = compressed_bytes != 0 && (entry.flags & (flag::kLz4 | flag::kZstd)) != 0;
    entry.unpacked_bytes = entry.compressed ? read_at<std::uint64_t>(at, entry_field::kUnpackedBytes) : payload_bytes;
    entry.whole = rest.first(header_bytes + payload_bytes);
    entry.stored = entry.whole.subspan(header_bytes, entry.compressed ? compressed_bytes : payload_bytes);
    return entry;
}

// An image whose header says how long it is, which `length_of` reads.
Result<Image> bounded(Bytes image, Form form, std::size_t header_bytes,
                      Result<std::uint64_t> (*length_of)(const std::byte* header)) {
    const char* const name = form == Form::cubin ? "cubin" : "fat binary";
    if (image.size() < header_bytes) {
        return malformed(fmt::format("{} header is cut off", name));
    }
    const auto length = length_of(image.data());
    if (!length) {
        return length.error();
    }
    if (*length > image.size()) {
        return malformed(fmt::format("{} claims {} bytes, {} are there", name, *length, image.size()));
    }
    return Image{form, image.first(*length), {}};
}

Result<Image> bounded_container(Bytes image) {
    return bounded(image, Form::container, kContainerHeaderBytes, container_bytes);
}

Result<Image> bounded_cubin(Bytes image) {
    return bounded(image, Form::cubin, kElfHeaderBytes, cubin_bytes);
}

}  // namespace

Error malformed(std::string message) {
    return Error{ErrorCode::invalid_input, "code image: " + std::move(message)};
}

Result<std::uint64_t> cubin_bytes(const std::byte* header) {
    // The tables are at the end of every cubin seen so far, so that their end is the image's end.
    const auto program_offset = read_at<std::uint64_t>(header, 0x20);
    const auto section_offset = read_at<std::uint64_t>(header, 0x28);
    const std::uint64_t program_bytes =
        std::uint64_t{read_at<std::uint16_t>(header, 0x36)} * read_at<std::uint16_t>(header, 0x38);
    const std::uint64_t section_bytes =
        std::uint64_t{read_at<std::uint16_t>(header, 0x3A)} * read_at<std::uint16_t>(header, 0x3C);
    constexpr std::byte kElfClass64{2};
    if (header[4] != kElfClass64) {
        return malformed("cubin is not a 64 bit ELF file");
    }
    if (program_offset > kMaxImageBytes || section_offset > kMaxImageBytes) {
        return too_large(fmt::format("cubin tables lie beyond {} bytes", kMaxImageBytes));
    }
    const std::uint64_t length = std::max(program_offset + program_bytes, section_offset + section_bytes);
    return std::max<std::uint64_t>(length, kElfHeaderBytes);
}

Result<Image> inspect_trusted(const void* image) {
    if (image == nullptr) {
        return malformed("null pointer");
    }
    const std::byte* start = bytes_at(image);
    if (starts_with(start, kWrapperMagic)) {
        return trusted_wrapper(image);
    }
    if (starts_with(start, kContainerMagic)) {
        auto container = trusted_container(image);
        if (!container) {
            return container.error();
        }
        return Image{Form::container, *container, {}};
    }
    if (starts_with(start, kElfMagic)) {
        auto length = cubin_bytes(start);
        if (!length) {
            return length.error();
        }
        return Image{Form::cubin, Bytes(start, *length), {}};
    }
    const std::size_t text_bytes = strnlen(reinterpret_cast<const char*>(start), kMaxUnpackedBytes);
    if (text_bytes == kMaxUnpackedBytes) {
        return too_large("PTX text without a terminating NUL");
    }
    return Image{Form::ptx, Bytes(start, text_bytes + 1), {}};
}

Result<Image> inspect(Bytes image) {
    if (image.size() >= 4) {
        if (starts_with(image.data(), kWrapperMagic)) {
            return malformed("a fat binary wrapper contains pointers and cannot be sent");
        }
        if (starts_with(image.data(), kContainerMagic)) {
            return bounded_container(image);
        }
        if (starts_with(image.data(), kElfMagic)) {
            return bounded_cubin(image);
        }
    }
    // The driver reads text up to its NUL, so the bytes must contain one.
    const void* end = image.empty() ? nullptr : std::memchr(image.data(), 0, image.size());
    if (end == nullptr) {
        return malformed("PTX text without a terminating NUL");
    }
    const std::size_t length = static_cast<std::size_t>(bytes_at(end) - image.data()) + 1;
    if (length > kMaxUnpackedBytes) {
        return too_large(fmt::format("PTX text of {} bytes", length));
    }
    return Image{Form::ptx, image.first(length), {}};
}

Result<Image> inspect_joined(Bytes image) {
    auto first = inspect(image);
    if (!first || first->form != Form::container) {
        return first;
    }
    Image joined = std::move(*first);
    for (Bytes rest = image.subspan(joined.bytes.size());
         rest.size() >= kContainerHeaderBytes && starts_with(rest.data(), kContainerMagic);) {
        if (joined.prelinked.size() == kMaxPrelinked) {
            return too_large("too many prelinked fat binaries");
        }
        auto part = bounded_container(rest);
        if (!part) {
            return part.error().within(fmt::format("prelinked fat binary {}", joined.prelinked.size()));
        }
        joined.prelinked.push_back(part->bytes);
        rest = rest.subspan(part->bytes.size());
    }
    return joined;
}

Result<std::vector<Entry>> container_entries(Bytes container) {
    if (container.size() < kContainerHeaderBytes || !starts_with(container.data(), kContainerMagic)) {
        return malformed("not a fat binary");
    }
    auto image = bounded_container(container);
    if (!image) {
        return image.error();
    }
    const Bytes all = image->bytes;
    std::size_t offset = read_at<std::uint16_t>(all.data(), container_field::kHeaderBytes);
    std::vector<Entry> entries;
    while (offset < all.size()) {
        if (entries.size() == kMaxEntries) {
            return too_large(fmt::format("more than {} entries", kMaxEntries));
        }
        auto entry = entry_at(all.subspan(offset), offset);
        if (!entry) {
            return entry.error();
        }
        offset += entry->whole.size();
        entries.push_back(*entry);
    }
    return entries;
}

Result<std::vector<Entry>> image_entries(const Image& image) {
    if (image.form == Form::wrapper || image.form == Form::container) {
        return container_entries(image.bytes);
    }
    Entry entry;
    entry.kind = image.form == Form::cubin ? Kind::cubin : Kind::ptx;
    entry.stored = image.bytes;
    entry.unpacked_bytes = image.bytes.size();
    return std::vector<Entry>{entry};
}

}  // namespace gpupool::fatbin
