#include "common/files.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <cerrno>

#include "common/units.h"

namespace gpupool {
namespace {

bool is_null_device(const struct stat& facts) {
    return S_ISCHR(facts.st_mode) && facts.st_rdev == makedev(1, 3);
}

Error not_a_file(const std::string& path, const struct stat& facts) {
    const char* const what = S_ISFIFO(facts.st_mode)   ? "a FIFO"
                             : S_ISSOCK(facts.st_mode) ? "a socket"
                             : S_ISDIR(facts.st_mode)  ? "a folder"
                                                       : "a device";
    return Error{ErrorCode::invalid_input, fmt::format("{} is {}: name a file", path, what)};
}

}  // namespace

Result<std::optional<std::string>> read_file(const std::string& path, std::size_t limit_bytes) {
    // Without O_NONBLOCK, opening a FIFO would block until another process opens it for writing.
    const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
    if (!fd && (errno == ENOENT || errno == ENOTDIR)) {
        return std::optional<std::string>();
    }
    struct stat facts {};
    if (!fd || ::fstat(fd.get(), &facts) != 0) {
        return system_error("cannot read " + path, errno);
    }
    if (!S_ISREG(facts.st_mode) && !is_null_device(facts)) {
        return not_a_file(path, facts);
    }
    std::string text;
    constexpr std::size_t kAtOnce = 64u << 10;
    while (text.size() <= limit_bytes) {
        const std::size_t before = text.size();
        text.resize(before + kAtOnce);
        const ssize_t got = ::read(fd.get(), text.data() + before, kAtOnce);
        text.resize(before + (got > 0 ? static_cast<std::size_t>(got) : 0));
        if (got == 0) {
            return std::optional<std::string>(std::move(text));
        }
        if (got < 0 && errno != EINTR) {
            return system_error("cannot read " + path, errno);
        }
    }
    return Error{ErrorCode::limit_exceeded, fmt::format("{} is larger than {}", path, format_bytes(limit_bytes))};
}

std::string read_part(const std::string& path, std::uint64_t offset, std::size_t bytes) {
    const UniqueFd reader(::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
    std::string text(bytes, '\0');
    const ssize_t got = reader ? ::pread(reader.get(), text.data(), bytes, static_cast<off_t>(offset)) : -1;
    text.resize(got > 0 ? static_cast<std::size_t>(got) : 0);
    return text;
}

Result<UniqueFd> open_to_append(const std::string& path, unsigned mode) {
    UniqueFd fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_NONBLOCK | O_NOCTTY | O_CLOEXEC, mode));
    struct stat facts {};
    if (!fd || ::fstat(fd.get(), &facts) != 0) {
        const int problem = errno;
        // A FIFO without a reader, or a socket.
        if (problem == ENXIO && ::stat(path.c_str(), &facts) == 0) {
            return not_a_file(path, facts);
        }
        return system_error("cannot write " + path, problem);
    }
    if (!S_ISREG(facts.st_mode) && !is_null_device(facts) && ::isatty(fd.get()) == 0) {
        return not_a_file(path, facts);
    }
    ::fcntl(fd.get(), F_SETFL, O_APPEND);
    return fd;
}

}  // namespace gpupool
