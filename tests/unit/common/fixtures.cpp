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
    if (!file) throw std::runtime_error("no fixture " + name);
    std::string text(std::istreambuf_iterator<char>(file), {});
    if (name.ends_with(".ptx")) text.push_back('\0');
    const auto* bytes = reinterpret_cast<const std::byte*>(text.data());
    return {bytes, bytes + text.size()};
}

std::vector<std::byte> make_container(const std::vector<MadeEntry>& entries) {
    std::vector<std::byte> container(container_header_bytes);
    for (const MadeEntry& made : entries) {
        const std::size_t start = container.size();
        const std::size_t payload_bytes = (made.payload.size() + 7) / 8 * 8;
        container.resize(start + entry_header_bytes + payload_bytes);
        put(container, start + entry_field::kind, static_cast<std::uint16_t>(made.kind));
        put(container, start + entry_field::header_bytes, static_cast<std::uint32_t>(entry_header_bytes));
        put(container, start + entry_field::payload_bytes, std::uint64_t{payload_bytes});
        put(container, start + entry_field::compressed_bytes, made.compressed_bytes);
        put(container, start + entry_field::arch, made.arch);
        put(container, start + entry_field::flags, made.flags);
        put(container, start + entry_field::unpacked_bytes, made.unpacked_bytes);
        std::memcpy(container.data() + start + entry_header_bytes, made.payload.data(), made.payload.size());
    }
    put(container, 0, container_magic);
    put(container, container_field::version, container_version);
    put(container, container_field::header_bytes, static_cast<std::uint16_t>(container_header_bytes));
    put(container, container_field::entries_bytes, std::uint64_t{container.size() - container_header_bytes});
    return container;
}

}  // namespace gpupool::fatbin::test
