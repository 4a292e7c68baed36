#include "tests/unit/common/fixtures.h"

#include <fstream>
#include <iterator>
#include <stdexcept>

namespace gpupool::fatbin::test {
namespace {

template <class T>
void put(std::vector<std::byte>& target, std::size_t offset, T value) {
    std::memcpy(target.data() + offset, &value, sizeof value);
}

}  // namespace

std::vector<std::byte> fixture(const std::string& name) {
    std::ifstream file(std::string(GPUPOOL_FATBIN_FIXTURES) + "/" + name, std::ios::binary);
    if (!file) {
        throw std::runtime_error("no fixture " + name);
    }
    std::string text(std::istreambuf_iterator<char>(file), {});
    if (name.ends_with(".ptx")) {
        text.push_back('\0');
    }
    const auto* bytes = reinterpret_cast<const std::byte*>(text.data());
    return {bytes, bytes + text.size()};
}

std::vector<std::byte> make_container(const std::vector<MadeEntry>& entries) {
    std::vector<std::byte> container(kContainerHeaderBytes);
    for (const MadeEntry& made : entries) {
        const std::size_t start = container.size();
        const std::size_t payload_bytes = (made.payload.size() + 7) / 8 * 8;
        container.resize(start + kEntryHeaderBytes + payload_bytes);
        put(container, start + entry_field::kKind, static_cast<std::uint16_t>(made.kind));
        put(container, start + entry_field::kHeaderBytes, static_cast<std::uint32_t>(kEntryHeaderBytes));
        put(container, start + entry_field::kPayloadBytes, std::uint64_t{payload_bytes});
        put(container, start + entry_field::kCompressedBytes, made.compressed_bytes);
        put(container, start + entry_field::kArch, made.arch);
        put(container, start + entry_field::kFlags, made.flags);
        put(container, start + entry_field::kUnpackedBytes, made.unpacked_bytes);
        std::memcpy(container.data() + start + kEntryHeaderBytes, made.payload.data(), made.payload.size());
    }
    put(container, 0, kContainerMagic);
    put(container, container_field::kVersion, kContainerVersion);
    put(container, container_field::kHeaderBytes, static_cast<std::uint16_t>(kContainerHeaderBytes));
    put(container, container_field::kEntriesBytes, std::uint64_t{container.size() - kContainerHeaderBytes});
    return container;
}

}  // namespace gpupool::fatbin::test
