#include "client/cli/trace_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <string_view>

#include "client/cli/command.h"
#include "common/files.h"

namespace gpupool::cli {
namespace {

// Opens the file, empty: where it holds something, that has to begin as what is written there does, so that nobody's
// other file is lost. What is no file, a terminal or /dev/null, is left as it is, and `is_file` says so.
Result<UniqueFd> open_anew(std::string& path, std::string_view beginning, bool& is_file) {
    std::error_code problem;
    path = std::filesystem::absolute(path, problem);
    auto file = open_to_append(path, 0666);
    if (!file) {
        return file.error();
    }
    struct stat facts {};
    is_file = ::fstat(file->get(), &facts) == 0 && S_ISREG(facts.st_mode);
    if (!is_file || facts.st_size == 0) {
        return file;
    }
    if (read_part(path, 0, beginning.size()) != beginning) {
        return Error{ErrorCode::invalid_input, path + " holds something else: name another file, or remove it"};
    }
    if (::ftruncate(file->get(), 0) != 0) {
        return system_error("cannot write " + path, errno);
    }
    return file;
}

}  // namespace

Status begin_trace(std::string& path) {
    bool is_file = false;
    auto file = open_anew(path, "[\n", is_file);
    if (!file) {
        return file.error();
    }
    if (!is_file) {
        return Error{ErrorCode::invalid_input, path + " is not a file"};
    }
    if (::write(file->get(), "[\n", 2) != 2) {
        return system_error("cannot write " + path, errno);
    }
    return {};
}

Status begin_summary(std::string& path) {
    bool is_file = false;
    const auto file = open_anew(path, "call ", is_file);
    return file ? Status() : Status(file.error());
}

void complete_trace(const std::string& path) {
    const UniqueFd file(::open(path.c_str(), O_RDWR | O_CLOEXEC));
    struct stat facts {};
    if (!file || ::fstat(file.get(), &facts) != 0) {
        complain("there is no trace: " + system_error(path, errno).message);
        return;
    }
    if (facts.st_size <= 2) {
        complain("the trace is empty: the program has used no GPU");
    }
    char last[2] = {};
    off_t end = facts.st_size;
    if (end > 2 && ::pread(file.get(), last, 2, end - 2) == 2 && last[0] == ',') {
        end -= 2;  // ",\n"
    }
    const char* const close = facts.st_size <= 2 ? "]\n" : "\n]\n";
    const std::size_t bytes = facts.st_size <= 2 ? 2 : 3;
    if (::pwrite(file.get(), close, bytes, end) != static_cast<ssize_t>(bytes)) {
        complain(system_error("cannot write " + path, errno).message);
        return;
    }
    if (facts.st_size > 2) {
        std::fprintf(stderr, "gpupool: the timeline is in %s: open it at https://ui.perfetto.dev\n", path.c_str());
    }
}

}  // namespace gpupool::cli
