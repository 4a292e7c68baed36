#include "client/cli/trace_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>

#include "client/cli/command.h"
#include "common/files.h"

namespace gpupool::cli {

Status begin_trace(std::string& path) {
    std::error_code problem;
    path = std::filesystem::absolute(path, problem);
    auto file = open_to_append(path, 0666);
    if (!file) {
        return file.error();
    }
    struct stat facts {};
    if (::fstat(file->get(), &facts) != 0 || !S_ISREG(facts.st_mode)) {
        return Error{ErrorCode::invalid_input, path + " is not a file"};
    }
    if (::ftruncate(file->get(), 0) != 0 || ::write(file->get(), "[\n", 2) != 2) {
        return system_error("cannot write " + path, errno);
    }
    return {};
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
