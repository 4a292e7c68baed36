#include "server/isolation/calls.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sched.h>
#include <seccomp.h>
#include <sys/ioctl.h>
#include <sys/personality.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <memory>
#include <set>
#include <string>
#include <system_error>
#include <thread>

#include "common/log.h"
#include "common/unique_fd.h"

namespace gpupool::isolation {

namespace {

// Names that this libseccomp or this processor does not know are omitted.
constexpr const char* kAllowed[] = {
    // memory
    "brk", "get_mempolicy", "madvise", "mbind", "memfd_create", "mincore", "mlock", "mlock2", "mlockall", "mmap",
    "mprotect", "mremap", "msync", "munlock", "munlockall", "munmap", "pkey_alloc", "pkey_free", "pkey_mprotect",
    "set_mempolicy",
    // files. Which ones is Landlock's and the user's
    "access", "close", "close_range", "copy_file_range", "dup", "dup2", "dup3", "faccessat", "faccessat2", "fadvise64",
    "fallocate", "fchdir", "fchmod", "fchmodat", "fcntl", "fdatasync", "flock", "fstat", "fstatfs", "fsync",
    "ftruncate", "getcwd", "getdents64", "lseek", "lstat", "mkdir", "mkdirat", "newfstatat", "open", "openat",
    "pread64", "preadv", "preadv2", "pwrite64", "pwritev", "pwritev2", "read", "readahead", "readlink", "readlinkat",
    "readv", "rename", "renameat", "renameat2", "rmdir", "sendfile", "stat", "statfs", "statx", "sync_file_range",
    "umask", "unlink", "unlinkat", "utimensat", "write", "writev",
    // waiting
    "epoll_create", "epoll_create1", "epoll_ctl", "epoll_pwait", "epoll_pwait2", "epoll_wait", "eventfd", "eventfd2",
    "futex", "futex_waitv", "pause", "pipe", "pipe2", "poll", "ppoll", "pselect6", "select", "signalfd4",
    // sockets. socket() itself is ruled below: only Unix sockets. NVIDIA's driver listens at one
    "accept", "accept4", "bind", "connect", "getpeername", "getsockname", "getsockopt", "listen", "recvfrom",
    "recvmmsg", "recvmsg", "sendmmsg", "sendmsg", "sendto", "setsockopt", "shutdown",
    // time
    "alarm", "clock_getres", "clock_gettime", "clock_nanosleep", "getitimer", "gettimeofday", "nanosleep", "setitimer",
    "time", "timer_create", "timer_delete", "timer_getoverrun", "timer_gettime", "timer_settime", "timerfd_create",
    "timerfd_gettime", "timerfd_settime",
    // threads, and the own process
    "arch_prctl", "exit", "exit_group", "get_robust_list", "getcpu", "getpriority", "membarrier", "restart_syscall",
    "rseq", "rt_sigaction", "rt_sigpending", "rt_sigprocmask", "rt_sigreturn", "rt_sigsuspend", "rt_sigtimedwait",
    "sched_get_priority_max", "sched_get_priority_min", "sched_getaffinity", "sched_getattr", "sched_getparam",
    "sched_getscheduler", "sched_rr_get_interval", "sched_setaffinity", "sched_setattr", "sched_setparam",
    "sched_setscheduler", "sched_yield", "set_robust_list", "set_tid_address", "setpriority", "sigaltstack", "wait4",
    "waitid",
    // what it is
    "capget", "getegid", "geteuid", "getgid", "getgroups", "getpgid", "getpgrp", "getpid", "getppid", "getrandom",
    "getresgid", "getresuid", "getrlimit", "getrusage", "getsid", "gettid", "getuid", "kcmp", "pidfd_open", "sysinfo",
    "times", "uname"};

// Fail with EPERM, so that a log of a program under strace shows a refusal. All others fail with ENOSYS.
constexpr const char* kForbidden[] = {
    // other programs
    "execve", "execveat", "fork", "vfork",
    // other processes
    "pidfd_getfd", "pidfd_send_signal", "process_madvise", "process_mrelease", "process_vm_readv", "process_vm_writev",
    "ptrace", "migrate_pages", "move_pages", "setpgid", "setsid", "tkill",
    // the kernel
    "add_key", "bpf", "delete_module", "finit_module", "init_module", "io_uring_enter", "io_uring_register",
    "io_uring_setup", "ioperm", "iopl", "kexec_file_load", "kexec_load", "keyctl", "lookup_dcookie", "modify_ldt",
    "perf_event_open", "request_key", "syslog", "userfaultfd",
    // the machine
    "acct", "adjtimex", "clock_adjtime", "clock_settime", "quotactl", "quotactl_fd", "reboot", "setdomainname",
    "sethostname", "settimeofday", "swapoff", "swapon", "vhangup",
    // mounts and name spaces
    "chroot", "fsconfig", "fsmount", "fsopen", "fspick", "mount", "mount_setattr", "move_mount", "open_by_handle_at",
    "name_to_handle_at", "open_tree", "pivot_root", "setns", "umount2", "unshare",
    // rights
    "capset", "chown", "fchown", "fchownat", "lchown", "fsetxattr", "lsetxattr", "setxattr", "setfsgid", "setfsuid",
    "setgid", "setgroups", "setregid", "setresgid", "setresuid", "setreuid", "setuid", "setrlimit", "link", "linkat",
    "mknod", "mknodat", "symlink", "symlinkat"};

// prctl() of the C library, of drivers and of this project's programs.
constexpr int kAllowedControls[] = {PR_SET_NAME,         PR_GET_NAME,       PR_SET_PDEATHSIG,   PR_GET_PDEATHSIG,
                                    PR_GET_DUMPABLE,     PR_SET_TIMERSLACK, PR_GET_TIMERSLACK,  PR_GET_SECCOMP,
                                    PR_GET_NO_NEW_PRIVS, PR_CAPBSET_READ,   PR_GET_THP_DISABLE, PR_SET_THP_DISABLE,
                                    0x53564d41 /* PR_SET_VMA, which names memory */};

// Of a terminal's ioctl() requests, which begin with the byte 'T': those that only read. TIOCSTI and others would type
// into the terminal that the server was started from. Requests with any other byte are a driver's.
constexpr unsigned long kTerminalByte = 0x5400;
constexpr unsigned long kAllowedOfTerminals[] = {TCGETS, TIOCGWINSZ, FIONREAD, FIONBIO, FIOCLEX, FIONCLEX};

class Filter {
  public:
    Filter(Seccomp mode)
        : context_(::seccomp_init(otherwise(mode, ENOSYS)), &::seccomp_release),
          forbid_(otherwise(mode, EPERM)),
          same_(otherwise(mode, ENOSYS) == forbid_) {}

    void allow(const char* name, const std::vector<scmp_arg_cmp>& when = {}) { add(SCMP_ACT_ALLOW, name, when); }
    void forbid(const char* name, const std::vector<scmp_arg_cmp>& when = {}) {
        if (!same_) {
            add(forbid_, name, when);
        }
    }

    Result<int> load() {
        if (context_ == nullptr) {
            return Error{ErrorCode::unavailable, "a filter cannot be made"};
        }
        if (failure_ != 0) {
            return system_error(fmt::format("the rule for {}", failed_), -failure_);
        }
        // A sanitizer may have threads already.
        ::seccomp_attr_set(context_.get(), SCMP_FLTATR_CTL_TSYNC, same_ ? 0 : 1);
        ::seccomp_attr_set(context_.get(), SCMP_FLTATR_CTL_OPTIMIZE, 2);  // a tree instead of a list
        if (const int failed = ::seccomp_load(context_.get()); failed != 0) {
            return system_error("the kernel refuses the filter", -failed);
        }
        return same_ ? ::seccomp_notify_fd(context_.get()) : -1;
    }

  private:
    static std::uint32_t otherwise(Seccomp mode, int number) {
        return mode == Seccomp::log ? SCMP_ACT_NOTIFY : SCMP_ACT_ERRNO(static_cast<unsigned>(number));
    }
    void add(std::uint32_t action, const char* name, const std::vector<scmp_arg_cmp>& when) {
        const int number = ::seccomp_syscall_resolve_name(name);
        if (context_ == nullptr || failure_ != 0 || number < 0) {
            return;
        }
        failure_ = ::seccomp_rule_add_array(context_.get(), action, number, static_cast<unsigned>(when.size()),
                                            when.empty() ? nullptr : when.data());
        failed_ = name;
    }

    std::unique_ptr<void, void (*)(scmp_filter_ctx)> context_;
    const std::uint32_t forbid_;
    const bool same_;  // in the mode `log`: every call that is not allowed is reported
    int failure_ = 0;
    std::string failed_;
};

// Compares 32 bits: the kernel ignores the upper half of these arguments.
scmp_arg_cmp is(unsigned argument, std::uint64_t value) {
    return {argument, SCMP_CMP_MASKED_EQ, 0xffffffff, value & 0xffffffff};
}
scmp_arg_cmp has(unsigned argument, std::uint64_t mask, std::uint64_t value) {
    return {argument, SCMP_CMP_MASKED_EQ, mask, value};
}

// Allows the call only with this first argument.
void allow_with(Filter& filter, const char* name, std::uint64_t value) {
    filter.allow(name, {is(0, value)});
    filter.forbid(name, {{0, SCMP_CMP_NE, value, 0}});
}

void add_rules(Filter& filter) {
    for (const char* name : kAllowed) {
        filter.allow(name);
    }
    for (const char* name : kForbidden) {
        filter.forbid(name);
    }
    for (const char* name : {"kill", "tgkill", "rt_sigqueueinfo", "rt_tgsigqueueinfo"}) {
        allow_with(filter, name, static_cast<std::uint64_t>(::getpid()));
    }
    filter.allow("prlimit64", {is(0, 0)});
    filter.allow("prlimit64", {is(0, static_cast<std::uint64_t>(::getpid()))});
    // Threads. The C library falls back to clone() if it gets ENOSYS for clone3(), whose flags no filter can read.
    filter.allow("clone", {has(0, CLONE_THREAD, CLONE_THREAD)});
    filter.forbid("clone", {has(0, CLONE_THREAD, 0)});
    for (const char* name : {"socket", "socketpair"}) {
        allow_with(filter, name, AF_UNIX);
    }
    for (const int option : kAllowedControls) {
        filter.allow("prctl", {is(0, static_cast<unsigned>(option))});
    }
    filter.allow("personality", {is(0, 0xffffffff)});  // asks only
    for (std::uint64_t bit = 0x100; bit <= 0x8000; bit <<= 1) {
        filter.allow("ioctl", {has(1, bit, bit & ~kTerminalByte)});
    }
    for (const unsigned long request : kAllowedOfTerminals) {
        filter.allow("ioctl", {is(1, request)});
    }
}

// The next call that waits to be made.
class Notification {
  public:
    Notification() : allocated_(::seccomp_notify_alloc(&request_, &response_) == 0) {}
    ~Notification() { ::seccomp_notify_free(request_, response_); }
    Notification(const Notification&) = delete;

    // 0, or an error's number.
    int receive(int notifications) {
        if (!allocated_) {
            return ENOMEM;
        }
        return ::seccomp_notify_receive(notifications, request_) == 0 ? 0 : errno;
    }
    void let_it_be_made(int notifications) {
        response_->id = request_->id;
        response_->flags = SECCOMP_USER_NOTIF_FLAG_CONTINUE;
        ::seccomp_notify_respond(notifications, response_);
    }
    [[nodiscard]] const seccomp_data& call() const { return request_->data; }

  private:
    seccomp_notif* request_ = nullptr;
    seccomp_notif_resp* response_ = nullptr;
    const bool allocated_;
};

// Logs each call once.
void report_calls(int notifications) {
    std::set<int> known;
    while (true) {
        Notification next;
        if (const int failed = next.receive(notifications); failed == EINTR || failed == ENOENT) {
            continue;  // a signal interrupted the thread that made the call
        } else if (failed != 0) {
            log::error("system calls cannot be reported any more: {}", system_error("receive", failed).message);
            return;
        }
        const seccomp_data& call = next.call();
        // Named first, as the process may end at once. But a thread that forks has the locks of the log and of memory.
        const bool forks = call.nr == SCMP_SYS(clone) || call.nr == SCMP_SYS(fork) || call.nr == SCMP_SYS(vfork);
        if (forks) {
            next.let_it_be_made(notifications);
        }
        if (known.insert(call.nr).second) {
            char* const name = ::seccomp_syscall_resolve_num_arch(call.arch, call.nr);
            log::warn("seccomp = \"enforce\" would refuse the system call {} ({:#x}, {:#x}, {:#x})",
                      name == nullptr ? std::to_string(call.nr) : name, call.args[0], call.args[1], call.args[2]);
            std::free(name);
        }
        if (!forks) {
            next.let_it_be_made(notifications);
        }
    }
}

// The thread that reports must exist before the filter, or it would be filtered itself.
class Reporter {
  public:
    Status begin() {
        int ends[2];
        if (::pipe2(ends, O_CLOEXEC) != 0) {
            return system_error("pipe2", errno);
        }
        input_.reset(ends[1]);
        if (!log::enabled(log::Level::warn)) {
            GPUPOOL_TRY(log::to_present_stderr(log::Level::warn));
        }
        try {
            std::thread([output = ends[0]] {
                int notifications = -1;
                if (::read(output, &notifications, sizeof notifications) == sizeof notifications) {
                    report_calls(notifications);
                }
                ::close(output);
            }).detach();
        } catch (const std::system_error& error) {
            return Error{ErrorCode::system, fmt::format("no thread to report system calls: {}", error.what())};
        }
        return {};
    }
    void report(int notifications) const {
        [[maybe_unused]] const auto written = ::write(input_.get(), &notifications, sizeof notifications);
    }

  private:
    UniqueFd input_;
};

}  // namespace

Status filter_calls(Seccomp mode) {
    if (mode == Seccomp::off) {
        return {};
    }
    Reporter reporter;
    if (mode == Seccomp::log) {
        GPUPOOL_TRY(reporter.begin());
    }
    Filter filter(mode);
    add_rules(filter);
    if (mode == Seccomp::log) {
        filter.allow("clone3");  // nothing fails for lack of it
    }
    const auto loaded = filter.load();
    if (!loaded) {
        return loaded.error();
    }
    if (mode == Seccomp::log) {
        reporter.report(*loaded);
    }
    return {};
}

}  // namespace gpupool::isolation
