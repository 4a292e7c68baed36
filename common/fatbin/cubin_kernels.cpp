// Kernels of an ELF cubin: entry symbols, and one .nv.info.<kernel> section of records each.
#include <elf.h>
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>

#include "common/fatbin/kernels.h"

namespace gpupool::fatbin {
namespace {

constexpr unsigned char symbol_is_kernel = 0x10;  // in st_other
constexpr std::string_view info_prefix = ".nv.info.";

// A record is {u8 format, u8 attribute, u16 value}; only this format is followed by data, `value` bytes of it.
constexpr std::uint8_t format_sized = 4;
constexpr std::size_t record_header_bytes = 4;
constexpr std::uint8_t attribute_parameter = 0x17;        // size packed into the upper bits of a word
constexpr std::uint8_t attribute_parameter_large = 0x45;  // blocks above 4 KB: size is a u16 of its own
constexpr std::uint8_t attribute_block_bytes = 0x19;
constexpr std::size_t parameter_record_bytes = 12;

Error malformed(std::string message) {
    return Error{ErrorCode::invalid_input, "cubin: " + std::move(message)};
}

struct Section {
    Elf64_Shdr header{};
    std::string_view name;
    Bytes bytes;
};

class Reader {
  public:
    explicit Reader(Bytes cubin) : cubin_(cubin) {}

    Status read_sections();
    const std::vector<Section>& sections() const { return sections_; }

    // The NUL-terminated string at `offset` of section `index`.
    std::optional<std::string_view> string_at(std::size_t index, std::uint64_t offset) const {
        if (index >= sections_.size()) return std::nullopt;
        const Bytes table = sections_[index].bytes;
        if (offset >= table.size()) return std::nullopt;
        const char* start = reinterpret_cast<const char*>(table.data()) + offset;
        const std::size_t length = strnlen(start, table.size() - offset);
        if (length == table.size() - offset) return std::nullopt;
        return std::string_view(start, length);
    }

  private:
    Bytes cubin_;
    std::vector<Section> sections_;
};

Status Reader::read_sections() {
    if (cubin_.size() < sizeof(Elf64_Ehdr)) return malformed("header is cut off");
    const auto header = read_at<Elf64_Ehdr>(cubin_.data(), 0);
    if (std::memcmp(header.e_ident, ELFMAG, SELFMAG) != 0 || header.e_ident[EI_CLASS] != ELFCLASS64 ||
        header.e_ident[EI_DATA] != ELFDATA2LSB || header.e_shentsize != sizeof(Elf64_Shdr)) {
        return malformed("not a 64 bit little-endian ELF file");
    }
    const std::uint64_t table_bytes = std::uint64_t{header.e_shnum} * sizeof(Elf64_Shdr);
    if (header.e_shoff > cubin_.size() || table_bytes > cubin_.size() - header.e_shoff) {
        return malformed("section table lies outside of the file");
    }
    sections_.resize(header.e_shnum);
    for (std::size_t i = 0; i < sections_.size(); ++i) {
        Section& section = sections_[i];
        section.header = read_at<Elf64_Shdr>(cubin_.data(), header.e_shoff + i * sizeof(Elf64_Shdr));
        const Elf64_Shdr& at = section.header;
        // Some types reserve memory and have no bytes in the file: whatever does not lie inside is left empty.
        if (at.sh_type != SHT_NOBITS && at.sh_offset <= cubin_.size() && at.sh_size <= cubin_.size() - at.sh_offset) {
            section.bytes = cubin_.subspan(at.sh_offset, at.sh_size);
        }
    }
    for (Section& section : sections_) {
        auto name = string_at(header.e_shstrndx, section.header.sh_name);
        if (!name) return malformed("a section's name lies outside of the name table");
        section.name = *name;
    }
    return {};
}

struct ParameterRecord {
    std::uint16_t ordinal;
    KernelParameter parameter;
};

// Sorts, and refuses gaps, repetitions and parameters outside of the block.
Status complete(KernelLayout& kernel, std::vector<ParameterRecord>& records) {
    std::sort(records.begin(), records.end(), [](const auto& a, const auto& b) { return a.ordinal < b.ordinal; });
    for (std::size_t i = 0; i < records.size(); ++i) {
        if (records[i].ordinal != i) return malformed(fmt::format("{}: parameter {} is missing", kernel.name, i));
        const KernelParameter& parameter = records[i].parameter;
        if (parameter.offset_bytes + parameter.size_bytes > kernel.parameter_block_bytes) {
            return malformed(fmt::format("{}: parameter {} lies outside of the block of {} bytes", kernel.name, i,
                                         kernel.parameter_block_bytes));
        }
        kernel.parameters.push_back(parameter);
    }
    return {};
}

Status read_info(Bytes info, KernelLayout& kernel) {
    std::vector<ParameterRecord> records;
    std::size_t at = 0;
    while (at + record_header_bytes <= info.size()) {
        const auto format = read_at<std::uint8_t>(info.data(), at);
        const auto attribute = read_at<std::uint8_t>(info.data(), at + 1);
        const auto value = read_at<std::uint16_t>(info.data(), at + 2);
        at += record_header_bytes;
        if (attribute == attribute_block_bytes) kernel.parameter_block_bytes = value;
        if (format != format_sized) continue;
        if (value > info.size() - at) return malformed(fmt::format("{}: a record is cut off", kernel.name));
        const std::byte* data = info.data() + at;
        at += value;
        const bool large = attribute == attribute_parameter_large;
        if (!large && attribute != attribute_parameter) continue;
        if (value != parameter_record_bytes || records.size() == max_kernel_parameters) {
            return malformed(fmt::format("{}: parameter record of {} bytes", kernel.name, value));
        }
        const std::uint32_t size_bytes =
            large ? read_at<std::uint16_t>(data, 8) : read_at<std::uint32_t>(data, 8) >> 18;
        records.push_back({read_at<std::uint16_t>(data, 4), {read_at<std::uint16_t>(data, 6), size_bytes}});
    }
    return complete(kernel, records);
}

// The names of all entry symbols, each once.
Result<std::vector<std::string_view>> kernel_names(const Reader& reader) {
    std::vector<std::string_view> names;
    for (const Section& section : reader.sections()) {
        if (section.header.sh_type != SHT_SYMTAB) continue;
        for (std::size_t at = 0; at + sizeof(Elf64_Sym) <= section.bytes.size(); at += sizeof(Elf64_Sym)) {
            const auto symbol = read_at<Elf64_Sym>(section.bytes.data(), at);
            const bool is_kernel = ELF64_ST_TYPE(symbol.st_info) == STT_FUNC &&
                                   (symbol.st_other & symbol_is_kernel) != 0 && symbol.st_shndx != SHN_UNDEF;
            if (!is_kernel) continue;
            auto name = reader.string_at(section.header.sh_link, symbol.st_name);
            if (!name || name->empty()) return malformed("a kernel's name lies outside of the string table");
            if (names.size() == max_kernels) {
                return Error{ErrorCode::limit_exceeded, fmt::format("cubin: more than {} kernels", max_kernels)};
            }
            names.push_back(*name);
        }
    }
    return names;
}

}  // namespace

Result<std::vector<KernelLayout>> cubin_kernels(Bytes cubin) {
    Reader reader(cubin);
    GPUPOOL_TRY(reader.read_sections());
    auto names = kernel_names(reader);
    if (!names) return names.error();
    std::map<std::string_view, Bytes> infos;
    for (const Section& section : reader.sections()) {
        if (section.name.starts_with(info_prefix)) infos[section.name.substr(info_prefix.size())] = section.bytes;
    }
    std::vector<KernelLayout> kernels;
    kernels.reserve(names->size());
    for (std::string_view name : *names) {
        KernelLayout kernel;
        kernel.name = name;
        if (auto info = infos.find(name); info != infos.end()) GPUPOOL_TRY(read_info(info->second, kernel));
        kernels.push_back(std::move(kernel));
    }
    return kernels;
}

}  // namespace gpupool::fatbin
