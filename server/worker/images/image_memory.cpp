#include "server/worker/images/image_memory.h"

#include <elf.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cstring>
#include <limits>
#include <string_view>
#include <utility>

#include "common/fatbin/unpack.h"
#include "common/round_up.h"

namespace gpupool::worker {
namespace {

constexpr std::uint64_t kPageBytes = 2u << 20;
constexpr std::uint64_t kMostBytes = std::uint64_t{1} << 46;
constexpr std::size_t kMaxKernels = 256u << 10;

// Larger pieces have pages of their own (measured).
std::uint64_t in_pages(std::uint64_t bytes) {
    bytes = std::min(bytes, kMostBytes);
    return bytes > kPageBytes / 2 ? round_up(bytes, kPageBytes) : bytes;
}

// The functions of the device's runtime, by the names that code refers to.
void note_name(std::string_view name, ImageMemory& out) {
    out.prints = out.prints || name == "vprintf" || name == "__assertfail";
    out.allocates = out.allocates || name == "malloc";
}

// `names`: NUL-terminated ones, one after the other.
void note_names(std::string_view names, ImageMemory& out) {
    while (!names.empty()) {
        const std::size_t end = std::min(names.find('\0'), names.size());
        note_name(names.substr(0, end), out);
        names.remove_prefix(std::min(end + 1, names.size()));
    }
}

std::string_view text_of(fatbin::Bytes bytes) {
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

template <class Value>
bool read_at(fatbin::Bytes bytes, std::uint64_t offset, Value& value) {
    if (offset > bytes.size() || bytes.size() - offset < sizeof value) {
        return false;
    }
    std::memcpy(&value, bytes.data() + offset, sizeof value);
    return true;
}

void add_section(std::string_view name, std::uint64_t bytes, ImageMemory& out) {
    constexpr std::string_view kText = ".text.";
    if (name.starts_with(kText)) {
        if (out.code_bytes.size() < kMaxKernels) {
            out.code_bytes[std::string(name.substr(kText.size()))] =
                static_cast<std::uint32_t>(std::min<std::uint64_t>(bytes, std::numeric_limits<std::uint32_t>::max()));
        }
    } else if (name.starts_with(".nv.global") ||
               (name.starts_with(".nv.constant") && !name.starts_with(".nv.constant0."))) {  // 0: arguments
        out.data_bytes = std::min(out.data_bytes + in_pages(bytes), kMostBytes);
    }
}

void add_cubin(fatbin::Bytes cubin, ImageMemory& out) {
    Elf64_Ehdr header{};
    Elf64_Shdr names{};
    if (!read_at(cubin, 0, header) || header.e_shoff > cubin.size() ||
        !read_at(cubin, header.e_shoff + std::uint64_t{header.e_shstrndx} * sizeof(Elf64_Shdr), names)) {
        return;
    }
    for (std::uint64_t i = 0; i < header.e_shnum; ++i) {
        Elf64_Shdr section{};
        if (!read_at(cubin, header.e_shoff + i * sizeof(Elf64_Shdr), section)) {
            return;
        }
        if (section.sh_type == SHT_STRTAB && section.sh_offset <= cubin.size()) {
            note_names(text_of(cubin).substr(section.sh_offset, section.sh_size), out);
        }
        const std::uint64_t at = names.sh_offset + section.sh_name;
        if (names.sh_offset > cubin.size() || at >= cubin.size()) {
            continue;
        }
        const auto* const text = reinterpret_cast<const char*>(cubin.data() + at);
        add_section({text, ::strnlen(text, cubin.size() - at)}, section.sh_size, out);
    }
}

// Reads PTX: words and single other characters, without comments.
class PtxWords {
  public:
    explicit PtxWords(std::string_view text) : text_(text) {}

    std::string_view next() {
        skip();
        const std::size_t begin = at_;
        while (at_ < text_.size() && is_word(text_[at_])) {
            ++at_;
        }
        at_ += at_ == begin && at_ < text_.size() ? 1 : 0;
        return text_.substr(begin, at_ - begin);
    }

  private:
    static bool is_word(char c) {
        return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '.' || c == '$' || c == '%';
    }
    void skip() {
        while (at_ < text_.size()) {
            if (std::isspace(static_cast<unsigned char>(text_[at_])) != 0) {
                ++at_;
            } else if (text_.substr(at_, 2) == "//") {
                at_ = std::min(text_.find('\n', at_), text_.size());
            } else if (text_.substr(at_, 2) == "/*") {
                const std::size_t end = text_.find("*/", at_ + 2);
                at_ = end == std::string_view::npos ? text_.size() : end + 2;
            } else {
                return;
            }
        }
    }

    std::string_view text_;
    std::size_t at_ = 0;
};

// 4 for ".b32", also for ".f16x2"; 0 for a word that is no type.
std::uint64_t type_bytes(std::string_view word) {
    const std::size_t digits = word.find_first_of("0123456789");
    const std::string_view kind = word.substr(0, std::min(digits, word.size()));
    if (digits == word.npos || (kind != ".b" && kind != ".s" && kind != ".u" && kind != ".f" && kind != ".bf")) {
        return 0;
    }
    std::uint64_t bits = 0;
    const char* const end = word.data() + word.size();
    const char* const after = std::from_chars(word.data() + digits, end, bits).ptr;
    return bits / 8 * (std::string_view(after, static_cast<std::size_t>(end - after)) == "x2" ? 2 : 1);
}

// A number of PTX: decimal, 0x1f, 017 or 0b11, maybe with a U behind it. 0 if it is none.
std::uint64_t ptx_number(std::string_view word) {
    int base = 10;
    if (word.size() > 1 && word[0] == '0') {
        const char mark = word[1];
        base = mark == 'x' || mark == 'X' ? 16 : mark == 'b' || mark == 'B' ? 2 : 8;
        word.remove_prefix(base == 8 ? 1 : 2);
    }
    std::uint64_t number = 0;
    const auto read = std::from_chars(word.data(), word.data() + word.size(), number, base);
    return read.ec == std::errc::result_out_of_range ? kMostBytes : number;
}

std::uint64_t product(std::uint64_t a, std::uint64_t b) {
    return b != 0 && a > kMostBytes / b ? kMostBytes : a * b;
}

// The value of a variable, behind the "=": returns what follows it, a comma or the end.
std::string_view skip_value(PtxWords& words) {
    int depth = 0;
    std::string_view word = words.next();
    while (!word.empty() && word != ";" && (depth > 0 || word != ",")) {
        depth += word == "{" ? 1 : word == "}" ? -1 : 0;
        word = words.next();
    }
    return word;
}

// The variables that follow ".global" or ".const", each in pages of its own, up to the end of the declaration.
std::uint64_t variables_bytes(PtxWords& words) {
    std::uint64_t type = 0, vector = 1, elements = 1, all = 0;
    for (std::string_view word = words.next(); !word.empty() && word != ";"; word = words.next()) {
        if (word == ".align") {
            words.next();
        } else if (word == ".v2" || word == ".v4") {
            vector = word == ".v2" ? 2 : 4;
        } else if (const std::uint64_t size = type_bytes(word); size != 0 && type == 0) {
            type = size;
        } else if (word == "[") {
            const std::string_view size = words.next();
            elements = size == "]" ? elements : product(elements, ptx_number(size));
        } else if (word == "," || word == "=") {
            all = std::min(all + in_pages(product(product(elements, vector), type)), kMostBytes);
            elements = 1;
            if (word == "=" && skip_value(words) != ",") {
                return all;
            }
        }
    }
    return std::min(all + in_pages(product(product(elements, vector), type)), kMostBytes);
}

void add_ptx(std::string_view text, ImageMemory& out) {
    PtxWords words(text);
    bool elsewhere = false;
    for (std::string_view word = words.next(); !word.empty(); word = words.next()) {
        note_name(word, out);
        if (word == ".extern") {
            elsewhere = true;
        } else if (word == ";") {
            elsewhere = false;
        } else if ((word == ".global" || word == ".const") && !elsewhere) {
            out.data_bytes = std::min(out.data_bytes + variables_bytes(words), kMostBytes);
        }
    }
}

void add_entry(const fatbin::Entry& entry, ImageMemory& out) {
    const auto code = fatbin::unpack(entry);
    out.may_print =
        !code || entry.kind == fatbin::Kind::lto_ir || text_of(code->bytes()).find("vprintf") != std::string_view::npos;
    if (code && entry.kind == fatbin::Kind::cubin) {
        add_cubin(code->bytes(), out);
    } else if (code && entry.kind == fatbin::Kind::ptx) {
        add_ptx(code->text(), out);
    }
}

void add_container(const fatbin::Image& image, ImageMemory& out) {
    const auto entries = fatbin::image_entries(image);
    if (!entries) {
        out.may_print = true;
        return;
    }
    // Of several entries the driver uses one; usually there is only one. The largest counts.
    std::uint64_t data_bytes = 0;
    for (const fatbin::Entry& entry : *entries) {
        ImageMemory own;
        add_entry(entry, own);
        out.prints = out.prints || own.prints;
        out.allocates = out.allocates || own.allocates;
        out.may_print = out.may_print || own.may_print;
        data_bytes = std::max(data_bytes, own.data_bytes);
        out.code_bytes.merge(own.code_bytes);
    }
    out.data_bytes += data_bytes;
}

}  // namespace

ImageMemory image_memory(fatbin::Bytes image) {
    ImageMemory memory;
    const auto joined = fatbin::inspect_joined(image);
    if (!joined) {
        memory.may_print = true;
        return memory;
    }
    add_container(*joined, memory);
    for (const fatbin::Bytes part : joined->prelinked) {
        if (const auto linked = fatbin::inspect(part)) {
            add_container(*linked, memory);
        } else {
            memory.may_print = true;
        }
    }
    return memory;
}

}  // namespace gpupool::worker
