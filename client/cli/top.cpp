// gpupool top: a live view of a server in the terminal.
//
// Threads: one asks the server, again and again; the main thread has the terminal and waits for keys. So keys work
// while the server does not answer.
#define NCURSES_NOMACROS 1
#include <curses.h>
#include <fmt/format.h>
#include <langinfo.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <clocale>
#include <cstdio>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "client/cli/administration.h"
#include "client/cli/command.h"
#include "client/cli/settings.h"
#include "client/cli/top_model.h"
#include "client/cli/top_screen.h"
#include "common/environment.h"
#include "common/mutex.h"
#include "protocol/transport/endpoint.h"

namespace gpupool::cli {

namespace {

using std::chrono::milliseconds;

constexpr milliseconds kTopTimeout{3000};
constexpr milliseconds kKeyWait{100};

struct TopOptions {
    std::string server;
    std::string tenant;
    std::string sort = "memory";
    double interval_seconds = 1;
};

// Asks for the status at intervals, on a thread of its own.
class StatusSource {
  public:
    StatusSource(Settings settings, milliseconds interval)
        : settings_(std::move(settings)), interval_(interval), thread_([this] { run(); }) {}
    ~StatusSource() {
        {
            const Lock lock(mutex_);
            ended_ = true;
            changed_.notify_all();
        }
        thread_.join();
    }
    StatusSource(const StatusSource&) = delete;

    // The latest answer, once.
    std::optional<Result<ServerStatus>> take() {
        const Lock lock(mutex_);
        return std::exchange(latest_, std::nullopt);
    }

  private:
    void run() {
        while (true) {
            auto status = ask_status(settings_.server, settings_.token, kTopTimeout);
            UniqueLock lock(mutex_);
            latest_ = std::move(status);
            if (changed_.wait_for(lock, interval_, [&]() GP_REQUIRES(mutex_) { return ended_; })) {
                return;
            }
        }
    }

    const Settings settings_;
    const milliseconds interval_;
    Mutex mutex_;
    Condition changed_;
    std::optional<Result<ServerStatus>> latest_ GP_GUARDED_BY(mutex_);
    bool ended_ GP_GUARDED_BY(mutex_) = false;
    std::thread thread_;
};

// The terminal, as it was again when this ends.
class Terminal {
  public:
    static Result<std::unique_ptr<Terminal>> open() {
        const std::string kind = environment::text("TERM").value_or("");
        SCREEN* const screen = kind.empty() ? nullptr : ::newterm(nullptr, stdout, stdin);
        if (screen == nullptr) {
            return Error{ErrorCode::unsupported,
                         fmt::format("gpupool top does not know the terminal '{}' (TERM): gpupool status --watch needs "
                                     "none",
                                     kind)};
        }
        return std::unique_ptr<Terminal>(new Terminal(screen));
    }
    ~Terminal() {
        ::endwin();
        ::delscreen(screen_);
    }
    Terminal(const Terminal&) = delete;

    // A key, or ERR if none was pressed for a while.
    static int key() { return ::getch(); }
    [[nodiscard]] TopSize size() const {
        return {static_cast<std::size_t>(std::max(LINES, 1)), static_cast<std::size_t>(std::max(COLS, 1)), unicode_, 0};
    }
    void show(const std::vector<TopLine>& lines) const {
        ::erase();
        for (std::size_t row = 0; row < lines.size(); ++row) {
            ::attrset(static_cast<int>(attributes(lines[row].style)));
            ::mvaddstr(static_cast<int>(row), 0, lines[row].text.c_str());
        }
        ::attrset(A_NORMAL);
        ::refresh();
    }

  private:
    explicit Terminal(SCREEN* screen) : screen_(screen) {
        ::cbreak();
        ::noecho();
        ::keypad(stdscr, TRUE);
        ::curs_set(0);
        ::timeout(static_cast<int>(kKeyWait.count()));
        if (::has_colors()) {
            ::start_color();
            ::use_default_colors();
            ::init_pair(1, COLOR_YELLOW, -1);
            ::init_pair(2, COLOR_RED, -1);
            colors_ = true;
        }
    }
    [[nodiscard]] attr_t attributes(TopStyle style) const {
        switch (style) {
            case TopStyle::heading: return A_BOLD;
            case TopStyle::high: return colors_ ? static_cast<attr_t>(COLOR_PAIR(1)) : static_cast<attr_t>(A_BOLD);
            case TopStyle::alarm:
                return colors_ ? static_cast<attr_t>(COLOR_PAIR(2) | A_BOLD) : static_cast<attr_t>(A_REVERSE);
            case TopStyle::plain: break;
        }
        return A_NORMAL;
    }

    SCREEN* const screen_;
    const bool unicode_ = std::strcmp(::nl_langinfo(CODESET), "UTF-8") == 0;
    bool colors_ = false;
};

// Handles a key; false: the user is done.
bool handle_key(int key, TopModel& model, std::size_t& scroll) {
    const std::size_t last = model.sessions().size() - std::min<std::size_t>(model.sessions().size(), 1);
    constexpr std::size_t kPage = 10;
    switch (key) {
        case 'q':
        case 'Q': return false;
        case 's': model.next_sort(); break;
        case 'r': model.reverse(); break;
        case 't':
            model.next_tenant();
            scroll = 0;
            break;
        case KEY_UP: scroll -= std::min<std::size_t>(scroll, 1); break;
        case KEY_PPAGE: scroll -= std::min(scroll, kPage); break;
        case KEY_DOWN: scroll += 1; break;
        case KEY_NPAGE: scroll += kPage; break;
        case KEY_HOME: scroll = 0; break;
        default: break;
    }
    scroll = std::min(scroll, last);
    return true;
}

int show_top(const TopOptions& options) {
    int exit_code = 0;
    const auto settings = settings_or_complain(options.server, exit_code);
    if (!settings) {
        return exit_code;
    }
    if (::isatty(STDIN_FILENO) == 0 || ::isatty(STDOUT_FILENO) == 0) {
        complain("gpupool top needs a terminal: gpupool status --watch needs none");
        return kExitFailed;
    }
    // Before the terminal changes: a server that is not there is an error, as for `gpupool status`.
    auto first = ask_status(settings->server, settings->token, kTopTimeout);
    if (!first) {
        complain(first.error().message);
        return kExitFailed;
    }
    TopModel model;
    model.set_tenant(options.tenant);
    while (name_of(model.sort()) != options.sort) {
        model.next_sort();
    }
    model.update(std::move(*first), std::chrono::steady_clock::now());
    std::setlocale(LC_ALL, "");
    const auto terminal = Terminal::open();
    if (!terminal) {
        complain(terminal.error().message);
        return kExitFailed;
    }
    StatusSource source(*settings, milliseconds(static_cast<std::int64_t>(options.interval_seconds * 1000)));
    std::size_t scroll = 0;
    do {
        const auto now = std::chrono::steady_clock::now();
        if (auto latest = source.take()) {
            if (*latest) {
                model.update(std::move(**latest), now);
            } else {
                model.lose(latest->error().message, now);
            }
        }
        TopSize size = (*terminal)->size();
        size.scroll = scroll;
        (*terminal)->show(top_screen(model, size, now));
    } while (handle_key(Terminal::key(), model, scroll));
    return 0;
}

}  // namespace

void add_top(CLI::App& app, Command& chosen) {
    auto options = std::make_shared<TopOptions>();
    auto* command = app.add_subcommand("top", "Watch a server, its devices and sessions in the terminal");
    command->add_option("--server", options->server,
                        fmt::format("HOST:PORT or unix:/PATH; default: GPUPOOL_SERVER, the configuration file, {}",
                                    transport::kDefaultAddress));
    command->add_option("--tenant", options->tenant, "Only the sessions of this tenant");
    command->add_option("--sort", options->sort, "memory (default), copied, age or tenant")
        ->check(CLI::IsMember({"memory", "copied", "age", "tenant"}));
    command->add_option("--interval", options->interval_seconds, "Seconds between two readings (default 1)")
        ->check(CLI::Range(0.1, 3600.0));
    command->callback([options, &chosen] { chosen = [options] { return show_top(*options); }; });
}

}  // namespace gpupool::cli
