/* Tells systemd how the daemon is: one datagram to $NOTIFY_SOCKET, when there is one. Main thread;
 * never fails; nobody listening is nothing. */
#ifndef MF_SERVER_NOTIFY_H
#define MF_SERVER_NOTIFY_H

/* "READY=1", "STOPPING=1". */
void mf_notify_send(const char *text);

#endif
