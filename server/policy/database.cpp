#include "server/policy/database.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sqlite3.h>
#include <unistd.h>

#include <cerrno>

#include "common/unique_fd.h"

namespace gpupool::policy {
namespace {

constexpr int kBusyTimeoutMs = 2000;

int bind(sqlite3_stmt* statement, int index, const Parameter& parameter) {
    if (const auto* number = std::get_if<std::int64_t>(&parameter)) {
        return sqlite3_bind_int64(statement, index, *number);
    }
    if (const auto* text = std::get_if<std::string_view>(&parameter)) {
        return sqlite3_bind_text64(statement, index, text->data(), text->size(), SQLITE_TRANSIENT, SQLITE_UTF8);
    }
    if (const auto* bytes = std::get_if<std::span<const std::byte>>(&parameter)) {
        return sqlite3_bind_blob64(statement, index, bytes->data(), bytes->size(), SQLITE_TRANSIENT);
    }
    return sqlite3_bind_null(statement, index);
}

}  // namespace

std::int64_t Row::number(int column) const {
    return sqlite3_column_int64(statement_, column);
}

bool Row::is_null(int column) const {
    return sqlite3_column_type(statement_, column) == SQLITE_NULL;
}

std::string Row::text(int column) const {
    const void* const bytes = sqlite3_column_blob(statement_, column);
    const int count = sqlite3_column_bytes(statement_, column);
    return bytes == nullptr ? std::string()
                            : std::string(static_cast<const char*>(bytes), static_cast<std::size_t>(count));
}

void Database::Close::operator()(sqlite3* database) const {
    sqlite3_close_v2(database);
}

Error Database::error(const char* what) const {
    return Error{ErrorCode::system, fmt::format("cannot {} {}: {}", what, path_, sqlite3_errmsg(handle_.get()))};
}

Result<Database> Database::open(const std::string& path) {
    if (path != ":memory:") {
        // SQLite would create it with the umask's mode, so that other users might read it.
        const UniqueFd file(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
        if (!file) {
            return system_error("cannot open " + path, errno);
        }
    }
    sqlite3* handle = nullptr;
    const int opened = sqlite3_open_v2(path.c_str(), &handle,
                                       SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_NOMUTEX, nullptr);
    Database database(std::unique_ptr<sqlite3, Close>(handle), path);
    if (opened != SQLITE_OK) {
        return database.error("open");
    }
    sqlite3_busy_timeout(handle, kBusyTimeoutMs);
    // WAL: a crash at any moment leaves all transactions that were committed. FULL: so does a loss of power.
    GPUPOOL_TRY(database.run("PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL; PRAGMA foreign_keys=ON;"));
    return database;
}

Status Database::run(const char* statements) {
    if (sqlite3_exec(handle_.get(), statements, nullptr, nullptr, nullptr) != SQLITE_OK) {
        return error("change");
    }
    return {};
}

Status Database::run(std::string_view statement, std::initializer_list<Parameter> parameters,
                     const std::function<void(const Row&)>& row) {
    struct Finalize {
        void operator()(sqlite3_stmt* each) const { sqlite3_finalize(each); }
    };
    sqlite3_stmt* made = nullptr;
    if (sqlite3_prepare_v2(handle_.get(), statement.data(), static_cast<int>(statement.size()), &made, nullptr) !=
        SQLITE_OK) {
        return error("read");
    }
    const std::unique_ptr<sqlite3_stmt, Finalize> prepared(made);
    int index = 0;
    for (const Parameter& parameter : parameters) {
        if (bind(made, ++index, parameter) != SQLITE_OK) {
            return error("change");
        }
    }
    for (;;) {
        const int step = sqlite3_step(made);
        if (step == SQLITE_DONE) {
            return {};
        }
        if (step != SQLITE_ROW) {
            return error("change");
        }
        if (row) {
            row(Row(made));
        }
    }
}

Status Database::transaction(const std::function<Status()>& work) {
    GPUPOOL_TRY(run("BEGIN IMMEDIATE"));
    Status done = work();
    if (done) {
        done = run("COMMIT");
    }
    if (!done) {
        (void)run("ROLLBACK");
    }
    return done;
}

std::int64_t Database::last_row_id() const {
    return sqlite3_last_insert_rowid(handle_.get());
}

std::int64_t Database::changes() const {
    return sqlite3_changes64(handle_.get());
}

}  // namespace gpupool::policy
