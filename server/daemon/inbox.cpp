#include "server/daemon/inbox.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>

namespace gpupool::daemon {

namespace {

Error ending() {
    return Error{ErrorCode::closed, "the server is stopping"};
}

}  // namespace

Result<std::unique_ptr<Inbox>> Inbox::make() {
    UniqueFd wake(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    if (wake.get() < 0) {
        return system_error("eventfd", errno);
    }
    return std::unique_ptr<Inbox>(new Inbox(std::move(wake)));
}

void Inbox::wake() {
    const std::uint64_t one = 1;
    [[maybe_unused]] const auto written = ::write(wake_.get(), &one, sizeof(one));
}

std::optional<AdmittedConnection> Inbox::post(AdmittedConnection admitted) {
    {
        const Lock lock(mutex_);
        if (closed_) {
            return admitted;
        }
        admitted_.push_back(std::move(admitted));
    }
    wake();
    return std::nullopt;
}

Result<StatusBytes> Inbox::ask_status() {
    std::future<Result<StatusBytes>> answer;
    {
        const Lock lock(mutex_);
        if (closed_) {
            return ending();
        }
        answer = questions_.emplace_back().get_future();
    }
    wake();
    return answer.get();
}

void Inbox::take(std::vector<AdmittedConnection>& admitted, std::vector<StatusAnswer>& questions) {
    std::uint64_t count = 0;
    [[maybe_unused]] const auto taken = ::read(wake_.get(), &count, sizeof(count));
    const Lock lock(mutex_);
    admitted.swap(admitted_);
    questions.swap(questions_);
}

void Inbox::close() {
    std::vector<StatusAnswer> unanswered;
    {
        const Lock lock(mutex_);
        closed_ = true;
        unanswered.swap(questions_);
    }
    for (auto& question : unanswered) {
        question.set_value(ending());
    }
}

}  // namespace gpupool::daemon
