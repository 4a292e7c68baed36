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
#include "client/config.h"
#include "common/files.h"

namespace gpupool::cli {
namespace {

constexpr std::string_view kTimelineBegins = "[\n";
constexpr std::string_view kSummaryBegins = "call ";

// Opens the file. If it is not empty, it must begin like a file of this kind, so that no other file is lost. The result
// is empty if the path is not a regular file (a terminal, /dev/null).
Result<UniqueFd> open_file(std::string& path, std::string_view beginning) {
    std::error_code problem;
    path = std::filesystem::absolute(path, problem);
    auto file = open_to_append(path, 0666);
    if (!file) {
        return file.error();
    }
    struct stat facts {};
    if (::fstat(file->get(), &facts) != 0 || !S_ISREG(facts.st_mode)) {
        return UniqueFd();
    }
    if (facts.st_size != 0 && read_part(path, 0, beginning.size()) != beginning) {
        return Error{ErrorCode::invalid_input, path + " has other content: name another file, or remove it"};
    }
    return file;
}

}  // namespace

Result<TraceFiles> TraceFiles::open(std::string& timeline, std::string& summary) {
    TraceFiles files;
    auto opened = open_file(timeline, kTimelineBegins);
    if (!opened) {
        return opened.error().within("--output");
    }
    files.timeline_ = std::move(*opened);
    if (!files.timeline_) {
        return Error{ErrorCode::invalid_input, timeline + " is not a file"}.within("--output");
    }
    if (summary != client::kStandardErrorName) {
        opened = open_file(summary, kSummaryBegins);
        if (!opened) {
            return opened.error().within("--summary");
        }
        files.summary_ = std::move(*opened);
    }
    return files;
}

Status TraceFiles::begin() const {
    if (summary_ && ::ftruncate(summary_.get(), 0) != 0) {
        return system_error("cannot empty the summary", errno);
    }
    if (::ftruncate(timeline_.get(), 0) != 0 ||
        ::write(timeline_.get(), kTimelineBegins.data(), kTimelineBegins.size()) !=
            static_cast<ssize_t>(kTimelineBegins.size())) {
        return system_error("cannot write the timeline", errno);
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
        complain("the trace is empty: the program used no GPU");
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
