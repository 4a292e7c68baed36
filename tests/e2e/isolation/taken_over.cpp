// Stands for a worker that an attacker has taken over: enters a worker's sandbox, with the worker's own code, and then
// makes one attempt to get out.
//
//   gpupool_taken_over ATTEMPT [ARGUMENT] [--sandbox ITEM...]
//
// OWN_FOLDER is the path of the folder that it has open, as a worker has that of its tenant's code images.
//
// Prints "succeeded", or "refused: WHY". Without --sandbox it makes the attempt as it is, so that a test can see that
// the sandbox is what refuses it.

#include <dirent.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <thread>

#include "server/isolation/sandbox.h"

namespace {

using Attempt = std::function<bool(const std::string& argument)>;

bool made(long result) {
    return result >= 0;
}

bool opened(const std::string& path, int flags) {
    const int file = ::open(path.c_str(), flags | O_CLOEXEC | O_NOCTTY, 0600);
    char byte = 0;
    return file >= 0 && ((flags & O_ACCMODE) != O_RDONLY || ::read(file, &byte, 1) >= 0);
}

pid_t process_of(const std::string& text) {
    return std::atoi(text.c_str());
}

bool listed(const std::string& path) {
    DIR* const folder = ::opendir(path.c_str());
    return folder != nullptr && ::readdir(folder) != nullptr;
}

bool reads_memory_of(pid_t process) {
    char byte = 0;
    const iovec here{&byte, 1};
    // Without the right to read, the kernel refuses before it examines the address; with it, the address is wrong.
    const iovec there{reinterpret_cast<void*>(1), 1};
    return ::process_vm_readv(process, &here, 1, &there, 1, 0) == 1 || errno == EFAULT;
}

bool takes_descriptor_of(pid_t process) {
    const long handle = ::syscall(SYS_pidfd_open, process, 0);
    return handle >= 0 && ::syscall(438 /* pidfd_getfd */, handle, 0, 0) >= 0;
}

bool traces(pid_t process) {
    if (::ptrace(PTRACE_SEIZE, process, nullptr, nullptr) != 0) {
        return false;
    }
    ::ptrace(PTRACE_DETACH, process, nullptr, nullptr);
    return true;
}

bool runs_program() {
    ::execl("/bin/sh", "sh", "-c", "echo succeeded", nullptr);
    return false;
}

bool forks() {
    const pid_t child = ::fork();
    if (child == 0) {
        ::_exit(0);
    }
    return child > 0 && ::waitpid(child, nullptr, 0) == child;
}

bool connects_to(const std::string& port) {
    const int socket = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<std::uint16_t>(std::atoi(port.c_str())));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    return socket >= 0 && ::connect(socket, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
}

// An abstract name begins with @ here.
bool connects_to_local(const std::string& name) {
    const int socket = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path, name.data(), std::min(name.size(), sizeof address.sun_path - 1));
    address.sun_path[0] = name.starts_with('@') ? '\0' : address.sun_path[0];
    const auto bytes = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + name.size());
    return socket >= 0 && ::connect(socket, reinterpret_cast<const sockaddr*>(&address), bytes) == 0;
}

int own_folder = -1;

bool opens_from_folder(const std::string& path) {
    return ::openat(own_folder, path.c_str(), O_RDONLY | O_CLOEXEC) >= 0;
}

bool creates_in_folder(const std::string& name) {
    const int file = ::openat(own_folder, name.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
    return file >= 0 && ::unlinkat(own_folder, name.c_str(), 0) == 0;
}

bool dumps_core() {
    rlimit now{};
    const rlimit any{RLIM_INFINITY, RLIM_INFINITY};
    return ::getrlimit(RLIMIT_CORE, &now) == 0 && (now.rlim_max != 0 || ::setrlimit(RLIMIT_CORE, &any) == 0);
}

// A kernel may lack a call, or refuse these arguments: that is not the sandbox's doing, and counts as made.
bool calls(const std::string& number) {
    return ::syscall(std::atol(number.c_str()), -1L, -1L, -1L, -1L, -1L, -1L) >= 0 ||
           (errno != EPERM && errno != ENOSYS);
}

bool starts_thread() {
    bool ran = false;
    std::thread([&] { ran = true; }).join();
    return ran;
}

const std::map<std::string, Attempt> kAttempts = {
    {"signal", [](const std::string& process) { return made(::kill(process_of(process), 0)); }},
    {"signal-all", [](const std::string&) { return made(::kill(-1, 0)); }},
    {"trace", [](const std::string& process) { return traces(process_of(process)); }},
    {"read-memory", [](const std::string& process) { return reads_memory_of(process_of(process)); }},
    {"take-descriptor", [](const std::string& process) { return takes_descriptor_of(process_of(process)); }},
    {"read", [](const std::string& path) { return opened(path, O_RDONLY); }},
    {"use", [](const std::string& path) { return opened(path, O_RDWR); }},
    {"create", [](const std::string& path) { return opened(path, O_WRONLY | O_CREAT); }},
    {"list", listed},
    {"open-from-folder", opens_from_folder},
    {"create-in-folder", creates_in_folder},
    {"run-program", [](const std::string&) { return runs_program(); }},
    {"fork", [](const std::string&) { return forks(); }},
    {"mount", [](const std::string& folder) { return made(::mount("none", folder.c_str(), "tmpfs", 0, nullptr)); }},
    {"new-user-space", [](const std::string&) { return made(::unshare(CLONE_NEWUSER)); }},
    {"connect", connects_to},
    {"connect-local", connects_to_local},
    {"become-root", [](const std::string&) { return made(::setresuid(0, 0, 0)) && ::geteuid() == 0; }},
    {"dump-core", [](const std::string&) { return dumps_core(); }},
    {"make-node", [](const std::string& path) { return made(::mknod(path.c_str(), S_IFCHR | 0600, makedev(1, 3))); }},
    {"call", calls},
    {"start-thread", [](const std::string&) { return starts_thread(); }},
};

}  // namespace

int main(int argc, char** argv) {
    using namespace gpupool::isolation;
    std::size_t own = 0;
    const auto sandbox = find_sandbox(std::span(argv, static_cast<std::size_t>(argc)), own);
    const auto attempt = kAttempts.find(argc > 1 ? argv[1] : "");
    if (!sandbox || attempt == kAttempts.end() || own > 3) {
        std::fprintf(stderr, "gpupool_taken_over ATTEMPT [ARGUMENT] [--sandbox ITEM...]\n");
        return 2;
    }
    if (const char* const folder = std::getenv("OWN_FOLDER")) {
        own_folder = ::open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    }
    if (*sandbox) {
        if (const auto entered = enter(**sandbox); !entered) {
            std::fprintf(stderr, "no sandbox: %s\n", entered.error().message.c_str());
            return 2;
        }
    }
    errno = 0;
    const bool succeeded = attempt->second(own > 2 ? argv[2] : "");
    std::printf(succeeded ? "succeeded\n" : "refused: %s\n", std::strerror(errno));
    std::fflush(nullptr);
    ::_exit(0);  // a sanitizer's search for leaks makes calls that the sandbox refuses
}
