/* Holds the namespaces of a pod: waits, reaps orphans, ends at SIGTERM or SIGINT. */
#include <signal.h>
#include <stddef.h>
#include <sys/wait.h>

int main(void) {
	sigset_t all;
	int signal = 0;
	sigfillset(&all);
	if (sigprocmask(SIG_BLOCK, &all, NULL) != 0)
		return 1;
	for (;;) {
		if (sigwait(&all, &signal) != 0)
			return 1;
		if (signal == SIGTERM || signal == SIGINT)
			return 0;
		while (waitpid(-1, NULL, WNOHANG) > 0) {
		}
	}
}
