// Checks that fmt.cpp fits the installed {fmt}, with one value of each formatted kind.
#include <fmt/format.h>

#include <iterator>
#include <string>
#include <string_view>

int main(int argc, char** argv) {
    std::string text = fmt::format("{} {:x} {:>8} {}", argc, argc, argv[0], std::string_view("text"));
    text += fmt::format("{} {:.3f} {} {:L} {:#x} {}", 2.0 * argc, 1.5F, 0.5L * argc, argc, 255U, true);
    fmt::format_to(std::back_inserter(text), "{:016x} {} {}", 1ULL, static_cast<void*>(argv), 'c');
    fmt::memory_buffer buffer;
    fmt::format_to(std::back_inserter(buffer), "{:<5}|{:+d}", "x", -argc);
    fmt::print("{}", std::string_view(buffer.data(), buffer.size()));
    try {
        text += fmt::format(fmt::runtime("{:d}"), "not a number");
    } catch (const fmt::format_error&) {
        return text.empty();
    }
    return 2;
}
