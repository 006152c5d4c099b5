/* sy_http.c - libmicrohttpd with one thread of its own. Requests are small and rare: a scrape, a
 * probe, a person. */
#include "sy_http.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <microhttpd.h>

#include "sy_http_listen.h"

#define CONNECTIONS_MAX 64
#define TIMEOUT_S       10

#define TEXT_TYPE    "text/plain; charset=utf-8"
#define METRICS_TYPE "text/plain; version=0.0.4; charset=utf-8"
#define JSON_TYPE    "application/json"

struct sy_http {
    sy_http_config config;
    sy_listener listener;
    struct MHD_Daemon *daemon;
};

/* Fills body and returns the status. */
static unsigned answer(sy_http *self, const char *path, sy_strbuf *body, const char **type)
{
    *type = TEXT_TYPE;
    if (strcmp(path, "/metrics") == 0) {
        *type = METRICS_TYPE;
        self->config.metrics(self->config.ctx, body);
        return MHD_HTTP_OK;
    }
    if (strcmp(path, "/healthz") == 0) {
        sy_strbuf_puts(body, "ok\n");
        return MHD_HTTP_OK;
    }
    if (strcmp(path, "/readyz") == 0) {
        const int is_ready = self->config.ready(self->config.ctx, body);

        if (is_ready) sy_strbuf_reset(body);
        sy_strbuf_puts(body, is_ready ? "ready\n" : "\n");
        return is_ready ? MHD_HTTP_OK : MHD_HTTP_SERVICE_UNAVAILABLE;
    }
    if (self->config.get(self->config.ctx, path, body)) {
        *type = JSON_TYPE;
        return MHD_HTTP_OK;
    }
    sy_strbuf_reset(body);
    sy_strbuf_puts(body, "not found: there are /metrics, /healthz and /readyz\n");
    return MHD_HTTP_NOT_FOUND;
}

static enum MHD_Result on_request(void *cls, struct MHD_Connection *connection, const char *path,
                                  const char *method, const char *version, const char *upload,
                                  size_t *upload_bytes, void **request)
{
    sy_http *self = cls;
    const char *type = TEXT_TYPE;
    struct MHD_Response *response;
    enum MHD_Result result;
    unsigned status;
    sy_strbuf body;
    size_t len;
    char *data;

    (void)version;
    (void)upload;
    (void)upload_bytes;
    (void)request;
    sy_strbuf_init(&body);
    if (strcmp(method, MHD_HTTP_METHOD_GET) == 0 || strcmp(method, MHD_HTTP_METHOD_HEAD) == 0) {
        status = answer(self, path, &body, &type);
    } else {
        status = MHD_HTTP_METHOD_NOT_ALLOWED;
        sy_strbuf_puts(&body, "only GET and HEAD\n");
    }
    len = body.len;
    data = sy_strbuf_detach(&body);
    if (data == NULL) return MHD_NO; /* no memory: the connection is closed */
    response = MHD_create_response_from_buffer(len, data, MHD_RESPMEM_MUST_FREE);
    if (response == NULL) {
        free(data);
        return MHD_NO;
    }
    MHD_add_response_header(response, MHD_HTTP_HEADER_CONTENT_TYPE, type);
    if (status == MHD_HTTP_METHOD_NOT_ALLOWED) {
        MHD_add_response_header(response, MHD_HTTP_HEADER_ALLOW, "GET, HEAD");
    }
    result = MHD_queue_response(connection, status, response);
    MHD_destroy_response(response);
    return result;
}

sy_status sy_http_open(sy_http **out, const sy_http_config *config, sy_error *err)
{
    sy_http *self = calloc(1, sizeof(*self));
    sy_status st;

    *out = NULL;
    if (self == NULL) return sy_error_set(err, SY_ENOMEM, "no memory for the HTTP port");
    self->config = *config;
    self->config.address = NULL;
    SY_TRY(sy_listener_open(&self->listener, config->address, err));
    self->daemon = MHD_start_daemon(
        MHD_USE_AUTO_INTERNAL_THREAD, 0, NULL, NULL, on_request, self, MHD_OPTION_LISTEN_SOCKET,
        self->listener.fd, MHD_OPTION_CONNECTION_LIMIT, (unsigned)CONNECTIONS_MAX,
        MHD_OPTION_CONNECTION_TIMEOUT, (unsigned)TIMEOUT_S, MHD_OPTION_END);
    if (self->daemon == NULL) {
        close(self->listener.fd);
        sy_listener_unlink(&self->listener);
        st = sy_error_set(err, SY_EIO, "cannot start the HTTP server on %s", config->address);
        goto out;
    }
    *out = self;
    self = NULL;
out:
    free(self);
    return st;
}

void sy_http_close(sy_http *http)
{
    if (http == NULL) return;
    MHD_stop_daemon(http->daemon); /* closes the listening socket as well */
    sy_listener_unlink(&http->listener);
    free(http);
}

int sy_http_port(const sy_http *http)
{
    return http->listener.port;
}
