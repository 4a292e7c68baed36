// A SQLite database: opening it, and statements.
//
// Ownership: a Statement must not outlive its Database. Threads: one at a time. Calls block on the disk.
// Errors: Result; the message names the file and what SQLite says.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <variant>

#include "common/result.h"

struct sqlite3;
struct sqlite3_stmt;

namespace gpupool::policy {

class Row {
  public:
    explicit Row(sqlite3_stmt* statement) : statement_(statement) {}
    [[nodiscard]] std::int64_t number(int column) const;
    [[nodiscard]] bool is_null(int column) const;
    [[nodiscard]] std::string text(int column) const;  // a blob as well

  private:
    sqlite3_stmt* statement_;
};

// A parameter of a statement. nullptr: NULL.
using Parameter = std::variant<std::nullptr_t, std::int64_t, std::string_view, std::span<const std::byte>>;

class Database {
  public:
    // Creates the file with mode 0600 if it does not exist. ":memory:" for one without a file.
    static Result<Database> open(const std::string& path);
    Database(Database&&) noexcept = default;
    Database& operator=(Database&&) noexcept = default;

    // One or more statements without parameters.
    Status run(const char* statements);
    Status run(std::string_view statement, std::initializer_list<Parameter> parameters,
               const std::function<void(const Row&)>& row = {});
    // All statements that `work` runs take effect, or none.
    Status transaction(const std::function<Status()>& work);
    [[nodiscard]] std::int64_t last_row_id() const;
    // Rows that the last statement changed.
    [[nodiscard]] std::int64_t changes() const;

  private:
    struct Close {
        void operator()(sqlite3* database) const;
    };
    Database(std::unique_ptr<sqlite3, Close> handle, std::string path)
        : handle_(std::move(handle)), path_(std::move(path)) {}
    [[nodiscard]] Error error(const char* what) const;

    std::unique_ptr<sqlite3, Close> handle_;
    std::string path_;
};

}  // namespace gpupool::policy
