// validatorUrl: the default would send the document's address to a service elsewhere.
SwaggerUIBundle({ url: "openapi.json", dom_id: "#api", deepLinking: true, validatorUrl: null });
